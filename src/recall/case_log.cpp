#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "recall/runner.h"

namespace pivot::recall {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

Json fidelity_json(const LayerFidelity& f) {
  return {{"layer", f.layer},
          {"queries", f.queries},
          {"limited", f.limited},
          {"overlap", f.overlap},
          {"margin", f.margin},
          {"entry_mass", f.entry_mass},
          {"total_mass", f.total_mass},
          {"worst_overlap", f.worst_overlap},
          {"fact_rank", f.fact_rank},
          {"fact_exact_rank", f.fact_exact_rank},
          {"fact_selected", f.fact_selected}};
}

Json case_json(const CaseResult& r) {
  Json json = {{"id", r.id},
               {"task", to_string(r.spec.task)},
               {"length", r.spec.length_tokens},
               {"depth", r.spec.depth},
               {"residue", r.spec.residue},
               {"modulus", r.spec.modulus},
               {"sample", r.spec.sample},
               {"seed", r.spec.seed},
               {"prompt_tokens", r.prompt_tokens},
               {"facts", Json::array()},
               {"question", r.question},
               {"expected", r.expected},
               {"answer", r.answer},
               {"exact", r.score.exact},
               {"found", r.score.found},
               {"similarity", r.score.similarity},
               {"generated_tokens", r.generated_tokens},
               {"prefill_seconds", r.prefill_seconds},
               {"decode_seconds", r.decode_seconds},
               {"finish_reason", r.finish_reason},
               {"fidelity", Json::array()}};
  if (!r.failure.empty()) json["failure"] = r.failure;
  if (!r.remarks.empty()) json["remarks"] = r.remarks;
  for (const TokenRange& fact : r.facts) json["facts"].push_back({fact.begin, fact.end});
  for (const LayerFidelity& f : r.fidelity) json["fidelity"].push_back(fidelity_json(f));
  return json;
}

CaseResult read_case(const Json& json) {
  CaseResult r;
  const auto get = [](const Json& from, const char* name, auto& value) { from.at(name).get_to(value); };
  get(json, "id", r.id);
  for (const TaskInfo& info : task_table())
    if (info.name == json.at("task").get<std::string>()) r.spec.task = info.task;
  get(json, "length", r.spec.length_tokens);
  get(json, "depth", r.spec.depth);
  get(json, "residue", r.spec.residue);
  get(json, "modulus", r.spec.modulus);
  get(json, "sample", r.spec.sample);
  get(json, "seed", r.spec.seed);
  get(json, "prompt_tokens", r.prompt_tokens);
  for (const Json& fact : json.at("facts")) r.facts.push_back({fact.at(0), fact.at(1)});
  get(json, "question", r.question);
  get(json, "expected", r.expected);
  get(json, "answer", r.answer);
  get(json, "exact", r.score.exact);
  get(json, "found", r.score.found);
  get(json, "similarity", r.score.similarity);
  get(json, "generated_tokens", r.generated_tokens);
  get(json, "prefill_seconds", r.prefill_seconds);
  get(json, "decode_seconds", r.decode_seconds);
  get(json, "finish_reason", r.finish_reason);
  r.failure = json.value("failure", "");
  r.remarks = json.value("remarks", "");
  for (const Json& from : json.at("fidelity")) {
    LayerFidelity f;
    get(from, "layer", f.layer);
    get(from, "queries", f.queries);
    get(from, "limited", f.limited);
    get(from, "overlap", f.overlap);
    get(from, "margin", f.margin);
    get(from, "entry_mass", f.entry_mass);
    get(from, "total_mass", f.total_mass);
    get(from, "worst_overlap", f.worst_overlap);
    get(from, "fact_rank", f.fact_rank);
    get(from, "fact_exact_rank", f.fact_exact_rank);
    get(from, "fact_selected", f.fact_selected);
    r.fidelity.push_back(f);
  }
  return r;
}

// The first member in which two settings differ, as a sentence part.
std::string first_difference(const Json& held, const Json& wanted) {
  for (const auto& [name, value] : wanted.items())
    if (!held.contains(name) || held.at(name) != value)
      return fmt::format("{} is {} there and {} now", name,
                         held.contains(name) ? held.at(name).dump() : "absent", value.dump());
  return "they have other members";
}

Result<> write_line(int descriptor, const std::filesystem::path& path, std::string line) {
  line += '\n';
  const ssize_t written = ::write(descriptor, line.data(), line.size());
  if (written < 0 || ::fdatasync(descriptor) != 0) return fail(errno_error(errno, "write", path));
  if (static_cast<std::size_t>(written) != line.size())
    return fail(ErrorCode::kIo, "only {} of {} bytes could be written to {}: is the disk full?", written,
                line.size(), path.string());
  return {};
}

}  // namespace

std::string to_json(const CaseResult& result) { return case_json(result).dump(-1, ' ', false, kReplace); }

Result<CaseResult> parse_case_result(std::string_view json_line) {
  try {
    return read_case(Json::parse(json_line));
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kInvalidData, "not the line of a recall log: {}", error.what());
  }
}

CaseLog::CaseLog(CaseLog&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      done_(std::move(other.done_)) {}

CaseLog::~CaseLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<CaseLog> CaseLog::open(const std::filesystem::path& path, const std::string& settings, bool resume) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(path, ignored);
  if (exists && !resume)
    return fail(ErrorCode::kInvalidArgument,
                "{} holds an earlier run; continue it with --resume, or name another folder", path.string());
  std::string text;
  if (exists) {
    PIVOT_TRY(text, read_file(path));
    text.resize(text.rfind('\n') == std::string::npos ? 0
                                                      : text.rfind('\n') + 1);  // a torn last line is dropped
  }
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) return fail(errno_error(errno, "create", path));
  CaseLog log(descriptor, path);
  if (text.empty()) {
    if (::ftruncate(descriptor, 0) != 0) return fail(errno_error(errno, "shorten", path));
    PIVOT_TRY_VOID(write_line(descriptor, path, settings));
    return log;
  }
  if (::ftruncate(descriptor, static_cast<off_t>(text.size())) != 0)
    return fail(errno_error(errno, "shorten", path));
  std::string_view rest = text;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (number == 1) {
      const Json held = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      const Json wanted = Json::parse(settings);
      if (held != wanted)
        return fail(
            ErrorCode::kInvalidArgument, "{} belongs to a run with other settings ({}); name another folder",
            path.string(),
            held.is_object() ? first_difference(held, wanted) : "its first line is not a recall log's");
      continue;
    }
    auto result = parse_case_result(line);
    if (!result)
      return fail(std::move(result).error().with(fmt::format("{} line {}", path.string(), number)));
    log.done_.insert_or_assign(result->id, *std::move(result));
  }
  return log;
}

const CaseResult* CaseLog::find(const std::string& id) const {
  const auto found = done_.find(id);
  return found == done_.end() || !found->second.failure.empty() ? nullptr : &found->second;
}

Result<> CaseLog::append(const CaseResult& result) {
  PIVOT_TRY_VOID(write_line(descriptor_, path_, to_json(result)));
  done_.insert_or_assign(result.id, result);
  return {};
}

}  // namespace pivot::recall
