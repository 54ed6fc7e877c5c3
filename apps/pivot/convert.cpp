// pivot convert: the same weights with their experts in another format, verified.
#include "checkpoint/convert/convert.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/installation.h"
#include "base/report/units.h"
#include "checkpoint/diff/diff.h"
#include "checkpoint/inspect/inspection.h"
#include "command.h"
#include "report_output.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

struct Options {
  std::string input;
  std::string output;
  std::string experts;
  std::string input_scales;
  bool draft_experts = false;
  bool allow_rounding = false;
  bool no_verify = false;
  bool dry_run = false;
  int threads = 2;
  ReportOutput report;
};

ExpertTarget target_of(const std::string& name) {
  static const std::map<std::string, ExpertTarget> kTargets = {{"native", ExpertTarget::kNative},
                                                               {"nvfp4", ExpertTarget::kNvfp4},
                                                               {"fp8", ExpertTarget::kFp8},
                                                               {"bf16", ExpertTarget::kBf16}};
  return kTargets.at(name);
}

struct Verification {
  bool done = false;
  bool usable = false;       // the output inspects clean
  bool same_values = false;  // and its values are the source's
  std::string verdict;       // of the inspection
  std::string difference;    // of the diff
};

Result<Verification> verify(const Checkpoint& source, const Options& options) {
  Verification result;
  PIVOT_TRY(const Subject output, Subject::open(options.output));
  const Inspection inspection = inspect(output, {});
  result.verdict = inspection.verdict;
  result.usable =
      inspection.identification.supported && inspection.problems.empty() && inspection.audit.clean();
  if (!output.checkpoint())
    return fail(ErrorCode::kInternal, "the converted checkpoint {} is not sound: {}", options.output,
                inspection.problems.empty() ? "no reason found" : inspection.problems.front());
  ProgressBar bar("verifying", ProgressBar::Unit::kBytes);
  DiffOptions diff_options;
  diff_options.threads = options.threads;
  diff_options.stop = &InterruptScope::flag();
  diff_options.progress = [&](std::uint64_t done, std::uint64_t total) {
    bar.update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
  };
  PIVOT_TRY(const DiffReport diff,
            diff_checkpoints(source, *output.checkpoint(), options.input, options.output, diff_options));
  bar.clear();
  if (!diff.complete)
    return fail(ErrorCode::kCancelled,
                "verification was interrupted; the output is complete, check it with `pivot diff {} {}`",
                options.input, options.output);
  result.same_values = diff.same();
  result.difference = diff.verdict();
  result.done = true;
  return result;
}

report::Document document_of(const Options& options, const ConvertReport& report,
                             const Verification& verification) {
  report::Document document;
  document.title = "Converted " + options.input;
  document.subtitle = options.output;
  report::Table table;
  table.columns = {{"fact", report::Align::kLeft}, {"value", report::Align::kLeft}};
  const auto row = [&](const char* fact, report::Cell value) {
    table.rows.push_back({fact, std::move(value)});
  };
  row("experts", options.experts);
  row("matrices converted", report::format_count(report.matrices));
  row("tensors copied", report::format_count(report.copied_tensors));
  row("shards", fmt::format("{}{}", report.shards,
                            report.shards_resumed > 0
                                ? fmt::format(" ({} finished by an earlier run)", report.shards_resumed)
                                : ""));
  row("written",
      fmt::format("{} in {} ({}/s)", report::format_bytes(static_cast<double>(report.bytes_written)),
                  report::format_seconds(report.seconds),
                  report::format_bytes(
                      report.seconds > 0 ? static_cast<double>(report.bytes_written) / report.seconds : 0)));
  row("values",
      report.rounded_values == 0
          ? report::Cell("exact", report::Tone::kGood)
          : report::Cell(fmt::format("{} rounded, first in {}", report::format_count(report.rounded_values),
                                     report.rounded_example),
                         report::Tone::kWarning));
  if (options.experts == "nvfp4" && !report.calibrated_input_scales)
    row("input_scale", {"1.0 where the source had none: not calibrated; only engines with FP4 activations "
                        "read it (--input-scales takes calibrated ones)",
                        report::Tone::kWarning});
  if (verification.done) {
    row("inspection", {verification.verdict, verification.usable ? report::Tone::kGood : report::Tone::kBad});
    row("comparison",
        {verification.difference, verification.same_values ? report::Tone::kGood : report::Tone::kWarning});
  } else {
    row("verification", {"skipped", report::Tone::kMuted});
  }
  document.add(std::move(table));
  return document;
}

std::string json_of(const Options& options, const ConvertReport& report, const Verification& verification) {
  nlohmann::ordered_json json;
  json["schema"] = "pivot.convert/1";
  json["source"] = options.input;
  json["output"] = options.output;
  json["experts"] = options.experts;
  json["matrices"] = report.matrices;
  json["copied_tensors"] = report.copied_tensors;
  json["shards"] = report.shards;
  json["shards_resumed"] = report.shards_resumed;
  json["bytes_written"] = report.bytes_written;
  json["seconds"] = report.seconds;
  json["rounded_values"] = report.rounded_values;
  json["calibrated_input_scales"] = report.calibrated_input_scales;
  json["verified"] = verification.done;
  json["usable"] =
      verification.done ? nlohmann::ordered_json(verification.usable) : nlohmann::ordered_json(nullptr);
  json["same_values"] =
      verification.done ? nlohmann::ordered_json(verification.same_values) : nlohmann::ordered_json(nullptr);
  json["difference"] = verification.difference;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<int> run(const Options& options) {
  PIVOT_TRY(const std::filesystem::path input, resolve_model_argument(options.input));
  PIVOT_TRY(const Checkpoint source, Checkpoint::open(input.string()));
  std::optional<Checkpoint> scales;
  if (!options.input_scales.empty()) {
    PIVOT_TRY(scales, Checkpoint::open(options.input_scales));
  }
  ConvertOptions convert;
  convert.experts = target_of(options.experts);
  convert.draft_experts = options.draft_experts;
  convert.allow_rounding = options.allow_rounding;
  convert.threads = options.threads;
  convert.input_scales = scales ? &*scales : nullptr;
  if (options.dry_run) {
    PIVOT_TRY(const ConvertPlan plan, plan_conversion(source, options.output, convert));
    const std::string text = fmt::format(
        "would write {} ({} bytes, {} of them not yet there) to {}; {} are free\n",
        report::format_bytes(static_cast<double>(plan.output_bytes)), plan.output_bytes, plan.remaining_bytes,
        options.output, report::format_bytes(static_cast<double>(plan.free_bytes)));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  InterruptScope interrupt;
  convert.stop = &InterruptScope::flag();
  ProgressBar bar("converting", ProgressBar::Unit::kBytes);
  convert.progress = [&](std::uint64_t done, std::uint64_t total) {
    bar.update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
  };
  PIVOT_TRY(const ConvertReport report, convert_checkpoint(source, options.output, convert));
  bar.clear();
  Verification verification;
  if (!options.no_verify) {
    PIVOT_TRY(verification, verify(source, options));
  }
  PIVOT_TRY_VOID(write_report(options.report, document_of(options, report, verification),
                              [&] { return json_of(options, report, verification); }));
  const bool good =
      !verification.done || (verification.usable && (verification.same_values || report.rounded_values > 0));
  if (!good)
    return fail(ErrorCode::kInternal,
                "the converted checkpoint did not verify: {}; keep the source and report this",
                verification.difference);
  return 0;
}

}  // namespace

Run add_convert(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("IN", options->input,
                 "Checkpoint folder, ORG/NAME in the Hugging Face cache, or `embedded`; only read")
      ->required();
  app.add_option("OUT", options->output, "New folder, or one that an interrupted conversion left")
      ->required();
  app.add_option("--experts", options->experts, "Format of the routed experts")
      ->check(CLI::IsMember({"native", "nvfp4", "fp8", "bf16"}))
      ->required();
  app.add_flag("--draft-experts", options->draft_experts,
               "Convert the experts of mtp.* too (ModelOpt leaves them native)");
  app.add_flag("--allow-rounding", options->allow_rounding,
               "Accept the nearest value where the format cannot hold one exactly");
  app.add_option("--input-scales", options->input_scales,
                 "Take NVFP4 input_scale values from this checkpoint")
      ->type_name("PATH");
  app.add_option("--threads", options->threads, "Shards written at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--no-verify", options->no_verify, "Do not inspect and compare the output afterwards");
  app.add_flag("--dry-run", options->dry_run, "Say how much would be written, and stop");
  add_report_options(app, options->report, "convert.json");
  app.footer(
      "A killed conversion resumes with the same command. The source is never touched; OUT looks like a "
      "checkpoint only when it is complete.");
  return [options] { return run(*options); };
}

}  // namespace pivot::cli
