// pivot inspect: what a checkpoint, a header dump, or a folder of checkpoints really is.
#include "checkpoint/inspect/inspection.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/installation.h"
#include "checkpoint/inspect/inspection_report.h"
#include "command.h"
#include "pivot_version.h"
#include "report_output.h"

namespace pivot::cli {
namespace {

constexpr int kVerdictBad = 1;  // the inspection worked; what was inspected is not usable

struct Options {
  std::string path;
  std::string config;
  std::string values = "sample";
  ReportOutput output;
};

InspectOptions inspect_options(const Options& options) {
  InspectOptions result;
  result.values = options.values == "none"   ? ValueCheck::kNone
                  : options.values == "full" ? ValueCheck::kFull
                                             : ValueCheck::kSample;
  result.built_backends.clear();
  std::istringstream words(kBackends);
  for (std::string word; words >> word;) result.built_backends.push_back(word);
  return result;
}

Result<int> list_folder(const Options& options) {
  const std::filesystem::path folder(options.path);
  const auto found = find_checkpoints(folder);
  if (found.empty())
    return fail(ErrorCode::kNotFound,
                "{} holds neither a checkpoint nor folders that hold one; a folder with config.json and "
                ".safetensors files was wanted",
                options.path);
  InspectOptions inspect_with = inspect_options(options);
  inspect_with.values = ValueCheck::kNone;
  std::vector<Inspection> inspections;
  for (const auto& path : found) {
    auto subject = Subject::open(path.string());
    Inspection one;
    if (subject) {
      one = inspect(*subject, inspect_with);
    } else {
      one.verdict = "cannot be opened";
      one.problems.push_back(subject.error().to_string());
    }
    one.label = path.lexically_relative(folder).string();
    inspections.push_back(std::move(one));
  }
  PIVOT_TRY_VOID(write_report(options.output, listing_document(options.path, inspections),
                              [&] { return listing_json(options.path, inspections); }));
  return 0;
}

Result<int> run(const Options& options) {
  std::error_code error;
  PIVOT_TRY(const std::filesystem::path path, resolve_model_argument(options.path));
  const bool cache_entry = path.filename().string().starts_with("models--");
  if (std::filesystem::is_directory(path, error) && !cache_entry && !looks_like_checkpoint(path) &&
      !find_checkpoints(path).empty())
    return list_folder(options);
  std::optional<std::filesystem::path> config;
  if (!options.config.empty()) config = options.config;
  PIVOT_TRY(const Subject subject, Subject::open(path.string(), config));
  const Inspection inspection = inspect(subject, inspect_options(options));
  PIVOT_TRY_VOID(write_report(options.output, inspection_document(inspection),
                              [&] { return inspection_json(inspection); }));
  const bool config_only = !subject.has_headers() && inspection.problems.empty() && inspection.config;
  return config_only || (inspection.identification.supported && inspection.problems.empty()) ? 0
                                                                                             : kVerdictBad;
}

}  // namespace

Run add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("PATH", options->path,
                 "Checkpoint folder, ORG/NAME in the Hugging Face cache, `embedded`, header dump, or folder "
                 "of checkpoints")
      ->required();
  app.add_option("--config", options->config, "config.json to judge a header dump by")->type_name("FILE");
  app.add_option("--values", options->values,
                 "How far to look into the values: none, sample (some experts per layer), full (every scale)")
      ->check(CLI::IsMember({"none", "sample", "full"}))
      ->capture_default_str();
  add_report_options(app, options->output, "inspect.json");
  app.footer(
      "Exit code 0: pivot can run it. 1: inspected, but not usable as it is. Others as for every command.");
  return [options] { return run(*options); };
}

}  // namespace pivot::cli
