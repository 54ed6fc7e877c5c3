#include "recall/acceptance.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "recall/acceptance_tensors.h"
#include "recall/probe_shadow.h"
#include "text/chat/encode.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {
namespace {

constexpr double kWantedRecall = 0.95;
constexpr std::int64_t kRealVocabulary = 129280;

class Kit {
 public:
  explicit Kit(const AcceptanceSubject& subject) : s_(subject), config_(subject.weights->config) {}

  Result<Finding> continuity();
  Result<Finding> determinism();
  Result<Finding> restore();
  Result<Finding> audit();
  Result<Finding> recall_grid();
  Result<Finding> twin();
  Result<Finding> vectors();

 private:
  Result<std::unique_ptr<Session>> session(std::int64_t context, std::int32_t chunk,
                                           std::shared_ptr<Backend> backend = {},
                                           std::shared_ptr<const ModelWeights> weights = {}) const {
    SessionOptions options;
    options.weights = weights ? std::move(weights) : s_.weights;
    options.backend = backend ? std::move(backend) : s_.backend;
    options.knobs = s_.knobs;
    options.max_context = std::min(context, config_.max_position_embeddings);
    options.chunk_tokens = chunk;
    return Session::create(std::move(options));
  }
  // Logits after the first `count` tokens of the text, the last `stepwise` of them decoded one by one.
  Result<std::vector<float>> logits(Session& session, std::int64_t count, std::int64_t stepwise) const {
    session.reset();
    const std::span<const TokenId> ids(s_.text);
    if (count > stepwise)
      PIVOT_TRY_VOID(session.prefill(ids.first(static_cast<std::size_t>(count - stepwise)), {}, s_.cancel));
    for (std::int64_t i = count - stepwise; i < count; ++i)
      PIVOT_TRY_VOID(session.decode(ids[static_cast<std::size_t>(i)]));
    return std::vector<float>(session.logits().begin(), session.logits().end());
  }

  const AcceptanceSubject& s_;
  const ModelConfig& config_;
};

Result<Finding> Kit::continuity() {
  const auto most = static_cast<std::int64_t>(s_.text.size());
  PIVOT_TRY(const auto whole, session(most, 0));
  PIVOT_TRY(const auto odd, session(most, 37));
  double worst = 0;
  std::int64_t compared = 0, equal = 0;
  for (const std::int64_t count : {5L, 6L, 7L, 8L, 127L, 128L, 129L, 130L, 300L}) {
    if (count > most) continue;
    PIVOT_TRY(const std::vector<float> wanted, logits(*whole, count, 0));
    for (const bool stepwise : {false, true}) {
      PIVOT_TRY(const std::vector<float> found, logits(stepwise ? *whole : *odd, count, stepwise ? 3 : 0));
      worst = std::max(worst, relative_difference(found, wanted));
      ++compared;
      equal += found == wanted ? 1 : 0;
    }
  }
  const std::string text = fmt::format(
      "{} of {} logit rows equal bit for bit, largest relative difference {:.2g} (odd steps of 37, last "
      "three tokens decoded; lengths around 4 and 128)",
      equal, compared, worst);
  return worst < 0.02 ? pass(text) : failed(text);
}

Result<Finding> Kit::determinism() {
  const auto count = static_cast<std::int64_t>(s_.text.size());
  PIVOT_TRY(const auto first, session(count, 0));
  PIVOT_TRY(const std::vector<float> a, logits(*first, count, 0));
  PIVOT_TRY(const std::vector<float> b, logits(*first, count, 0));
  PIVOT_TRY(const auto second, session(count, 0));
  PIVOT_TRY(const std::vector<float> c, logits(*second, count, 0));
  if (a != b || a != c) return failed("the same prompt gave other bits the second time");
  return pass(fmt::format("{} tokens three times, two sessions: the same bits", count));
}

Result<Finding> Kit::restore() {
  const auto count = static_cast<std::int64_t>(s_.text.size());
  PIVOT_TRY(const auto kept, session(count + 320, 0));
  PIVOT_TRY(const std::vector<float> wanted, logits(*kept, count, 1));
  kept->reset();
  const std::span<const TokenId> ids(s_.text);
  PIVOT_TRY_VOID(kept->prefill(ids.first(ids.size() - 1), {}, s_.cancel));
  const std::vector<TokenId> detour(300, ids[ids.size() / 2]);
  PIVOT_TRY_VOID(kept->prefill(detour, {}, s_.cancel));
  PIVOT_TRY(const std::int64_t reused, kept->rewind_to_prefix(ids));
  PIVOT_TRY_VOID(kept->prefill(ids.subspan(static_cast<std::size_t>(reused)), {}, s_.cancel));
  const std::vector<float> found(kept->logits().begin(), kept->logits().end());
  const double difference = relative_difference(found, wanted);
  const std::string text = fmt::format(
      "back to token {} of {} after a detour of 300: {}", reused, count,
      found == wanted ? std::string("the same bits") : fmt::format("relative difference {:.2g}", difference));
  return reused > 0 && difference < 1e-3 ? pass(text) : failed(text);
}

Result<Finding> Kit::audit() {
  if (s_.cases.empty()) return skipped("no recall case fits");
  ProbeOptions options;
  options.audit = true;
  options.num_threads = s_.num_threads;
  const auto probe = std::make_shared<Probe>(s_.backend, s_.weights, options);
  const Case& test = s_.cases.front();
  PIVOT_TRY(const auto watched,
            session(static_cast<std::int64_t>(test.prompt.size()) + test.answer_tokens, 0, probe));
  const CaseRunner runner{watched.get(),  s_.tokenizer, s_.stop_tokens,
                          Path::kOneShot, probe.get(),  s_.cancel};
  PIVOT_TRY_VOID(runner.run(test));
  std::int64_t checked = 0;
  for (int i = 0; i < kNumParts; ++i) {
    const AuditCount& count = probe->audit()[static_cast<std::size_t>(i)];
    checked += count.checked;
    if (count.different * 50 > count.checked)
      return failed(fmt::format("{}: {} of {} comparisons differ, first in layer {} at {}",
                                to_string(static_cast<Part>(i)), count.different, count.checked, count.layer,
                                count.position));
  }
  return pass(fmt::format(
      "{} comparisons of compressor, KV rows, index keys and queries, selection and experts agree", checked));
}

Result<Finding> Kit::recall_grid() {
  if (s_.cases.empty()) return skipped("no recall case fits the model's context");
  std::int64_t longest = 0;
  for (const Case& test : s_.cases)
    longest = std::max(longest, static_cast<std::int64_t>(test.prompt.size()) + test.answer_tokens);
  PIVOT_TRY(const auto running, session(longest, 0));
  const CaseRunner runner{running.get(), s_.tokenizer, s_.stop_tokens, Path::kOneShot, nullptr, s_.cancel};
  std::int64_t right = 0, done = 0, tokens = 0;
  for (const Case& test : s_.cases) tokens += static_cast<std::int64_t>(test.prompt.size());
  if (s_.on_progress) s_.on_progress(0, tokens);
  std::string wrong;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> by_length;  // right, asked
  for (const Case& test : s_.cases) {
    PIVOT_TRY(const CaseResult result, runner.run(test));
    done += static_cast<std::int64_t>(test.prompt.size());
    if (s_.on_progress) s_.on_progress(done, tokens);
    right += result.score.exact ? 1 : 0;
    auto& [found, asked] = by_length[test.spec.length_tokens];
    found += result.score.exact ? 1 : 0;
    ++asked;
    if (!result.score.exact && wrong.empty())
      wrong = fmt::format("; first wrong: {} answered \"{}\"", result.id, result.answer);
  }
  const auto total = static_cast<std::int64_t>(s_.cases.size());
  const Interval interval = wilson_interval(right, total);
  std::string lengths;
  for (const auto& [length, count] : by_length)
    lengths +=
        fmt::format("{}{} of {} at {}", lengths.empty() ? "" : ", ", count.first, count.second, length);
  const std::string text = fmt::format("{} of {} right [{:.2f}, {:.2f}], {:.2f} wanted; {} tokens{}", right,
                                       total, interval.low, interval.high, kWantedRecall, lengths, wrong);
  return static_cast<double>(right) >= kWantedRecall * static_cast<double>(total) ? pass(text) : failed(text);
}

Result<Finding> Kit::twin() {
  if (!s_.twin) return skipped("no twin was given (--twin FOLDER: the same model with other expert bytes)");
  const auto count = static_cast<std::int64_t>(s_.text.size());
  PIVOT_TRY(const auto own, session(count, 0));
  PIVOT_TRY(const std::vector<float> a, logits(*own, count, 0));
  PIVOT_TRY(const auto other, session(count, 0, {}, s_.twin));
  PIVOT_TRY(const std::vector<float> b, logits(*other, count, 0));
  if (a == b) return pass("the logits are the same bits: the cast between the two was lossless");
  return failed(fmt::format("the logits differ by {:.2g}: the copies do not hold the same values",
                            relative_difference(b, a)));
}

Result<Finding> Kit::vectors() {
  if (s_.vectors.empty()) return skipped("no official answers were given (--vectors FOLDER)");
  if (config_.vocab_size != kRealVocabulary)
    return skipped(fmt::format("the vocabulary has {} entries; the official answers are of the model with {}",
                               config_.vocab_size, kRealVocabulary));
  PIVOT_TRY(const std::string manifest_text, read_file(s_.vectors / "manifest.json"));
  std::int64_t steps = 0, same = 0;
  double worst = 0;
  try {
    const auto manifest = nlohmann::json::parse(manifest_text);
    for (const auto& entry : manifest.at("prompts")) {
      PIVOT_TRY(const std::string answer_text,
                read_file(s_.vectors / entry.at("official_file").get<std::string>()));
      const auto answer = nlohmann::json::parse(answer_text);
      Conversation conversation;
      conversation.messages.push_back(
          ChatMessage::text(ChatRole::kUser, answer.at("prompt").get<std::string>()));
      ChatOptions chat;
      chat.thinking = ThinkingMode::kChat;
      PIVOT_TRY(const std::string prompt, encode_chat(conversation, chat));
      const std::vector<TokenId> ids = s_.tokenizer->encode(prompt);
      const auto official = answer.at("usage").at("prompt_tokens").get<std::int64_t>();
      if (static_cast<std::int64_t>(ids.size()) != official)
        return failed(
            fmt::format("a prompt has {} tokens here and {} with the vendor", ids.size(), official));
      PIVOT_TRY(const auto running, session(static_cast<std::int64_t>(ids.size()) + 16, 0));
      PIVOT_TRY_VOID(running->prefill(ids, {}, s_.cancel));
      for (const auto& step : answer.at("steps")) {
        const std::vector<TokenId> spelled =
            s_.tokenizer->encode(step.at("token").at("text").get<std::string>());
        if (spelled.size() != 1) break;  // a token that is half a character
        const TokenId id = spelled[0];
        const std::vector<TokenLogprob> top =
            top_logprobs(running->logits(), static_cast<std::int32_t>(config_.vocab_size));
        const auto found =
            std::find_if(top.begin(), top.end(), [&](const TokenLogprob& t) { return t.id == id; });
        ++steps;
        same += top.front().id == id ? 1 : 0;
        worst = std::max(worst, std::fabs(found->logprob - step.at("logprob").get<double>()));
        PIVOT_TRY_VOID(running->decode(id));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return failed(fmt::format("{}: {}", s_.vectors.string(), error.what()));
  }
  const std::string text = fmt::format(
      "{} of {} steps have the official token on top, log-probabilities within {:.3f}", same, steps, worst);
  return steps > 0 && same == steps ? pass(text) : failed(text);
}

}  // namespace

std::string_view to_string(Outcome outcome) {
  return outcome == Outcome::kPass ? "pass" : outcome == Outcome::kFail ? "fail" : "skipped";
}

Result<std::vector<Check>> accept(const AcceptanceSubject& subject) {
  Kit kit(subject);
  std::vector<Check> checks;
  checks.push_back({"1", "header audit", Outcome::kPass, subject.audit, 0});
  if (subject.on_check) subject.on_check(checks.back());
  const auto run = [&](std::string number, std::string name, const auto& body) -> Result<> {
    const auto start = std::chrono::steady_clock::now();
    Result<Finding> finding = body();
    if (!finding && finding.error().code == ErrorCode::kCancelled) return fail(std::move(finding).error());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    checks.push_back({std::move(number), std::move(name), finding ? finding->outcome : Outcome::kFail,
                      finding ? finding->detail : finding.error().to_string(), seconds});
    if (subject.on_check) subject.on_check(checks.back());
    return {};
  };
  const auto on_tensors = [&](const char* number, const char* name, Finding (*check)(const ModelWeights&)) {
    return run(number, name, [&]() -> Result<Finding> { return check(*subject.weights); });
  };
  PIVOT_TRY_VOID(on_tensors("2", "FP4 decoding on real tensors", check_fp4_decoding));
  PIVOT_TRY_VOID(on_tensors("3", "scale formula and ties", check_scale_formula));
  PIVOT_TRY_VOID(run("4, 7, 9, 12", "every part against the oracle", [&] { return kit.audit(); }));
  PIVOT_TRY_VOID(on_tensors("5", "Sinkhorn on real parameters", check_sinkhorn));
  PIVOT_TRY_VOID(on_tensors("6", "rotary embedding", check_rope));
  PIVOT_TRY_VOID(run("7", "whole, chunked and stepwise agree", [&] { return kit.continuity(); }));
  PIVOT_TRY_VOID(on_tensors("8", "Hadamard rotation", check_hadamard));
  PIVOT_TRY_VOID(run("10", "attention edges", []() -> Result<Finding> {
    return skipped("not a matter of the checkpoint: proven by the ops tests of this program");
  }));
  PIVOT_TRY_VOID(on_tensors("11", "router on real tables", check_router));
  PIVOT_TRY_VOID(run("13", "official answers", [&] { return kit.vectors(); }));
  PIVOT_TRY_VOID(run("14", "recall grid", [&] { return kit.recall_grid(); }));
  PIVOT_TRY_VOID(run("15", "twin checkpoint", [&] { return kit.twin(); }));
  PIVOT_TRY_VOID(run("-", "determinism", [&] { return kit.determinism(); }));
  PIVOT_TRY_VOID(run("-", "restored equals one-shot", [&] { return kit.restore(); }));
  return checks;
}

bool accepted(const std::vector<Check>& checks) {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& check) { return check.outcome == Outcome::kFail; });
}

report::Document acceptance_document(const std::string& model, const std::string& setting,
                                     const std::vector<Check>& checks) {
  report::Document document;
  document.title = fmt::format("Acceptance of {}", model);
  const auto count = [&](Outcome outcome) {
    return std::count_if(checks.begin(), checks.end(), [&](const Check& c) { return c.outcome == outcome; });
  };
  document.subtitle = setting;
  std::string failing;
  for (const Check& c : checks)
    if (c.outcome == Outcome::kFail) failing += fmt::format("{}{}", failing.empty() ? "" : ", ", c.name);
  const std::string counts = fmt::format("{} passed, {} failed, {} skipped", count(Outcome::kPass),
                                         count(Outcome::kFail), count(Outcome::kSkipped));
  document.paragraph(failing.empty() ? fmt::format("Accepted: {}.", counts)
                                     : fmt::format("NOT accepted: {}. Failed: {}.", counts, failing),
                     failing.empty() ? report::Tone::kGood : report::Tone::kBad);
  report::Table table;
  table.columns = {{"check", report::Align::kRight},
                   {"what"},
                   {"outcome"},
                   {"detail"},
                   {"seconds", report::Align::kRight}};
  for (const Check& c : checks) {
    const report::Tone tone = c.outcome == Outcome::kPass   ? report::Tone::kGood
                              : c.outcome == Outcome::kFail ? report::Tone::kBad
                                                            : report::Tone::kMuted;
    table.rows.push_back({c.number,
                          c.name,
                          {std::string(to_string(c.outcome)), tone},
                          c.detail,
                          fmt::format("{:.1f}", c.seconds)});
  }
  document.add(std::move(table));
  document.paragraph(
      "Numbers are those of specification section 10. A skipped check proves nothing: it says what it would "
      "need.");
  return document;
}

std::string acceptance_json(const std::string& model, const std::vector<Check>& checks) {
  nlohmann::ordered_json json = {
      {"model", model}, {"accepted", accepted(checks)}, {"checks", nlohmann::ordered_json::array()}};
  for (const Check& c : checks)
    json["checks"].push_back({{"number", c.number},
                              {"name", c.name},
                              {"outcome", to_string(c.outcome)},
                              {"detail", c.detail},
                              {"seconds", c.seconds}});
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace pivot::recall
