// pivot diff: what two checkpoints share, tensor by tensor.
#include "checkpoint/diff/diff.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/installation.h"
#include "checkpoint/diff/diff_report.h"
#include "checkpoint/inspect/subject.h"
#include "command.h"
#include "report_output.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

constexpr int kDiffers = 1;

struct Options {
  std::string a;
  std::string b;
  int threads = 2;
  bool every_tensor = false;
  ReportOutput output;
};

// A checkpoint with data, or the reason why not.
Result<Checkpoint> open_side(const std::string& model) {
  PIVOT_TRY(const std::filesystem::path path, resolve_model_argument(model));
  auto checkpoint = Checkpoint::open(path.string());
  if (checkpoint) return checkpoint;
  const auto subject = Subject::open(path.string());
  if (subject && !subject->checkpoint() && subject->has_headers() && subject->problems().empty())
    return fail(ErrorCode::kUnsupported,
                "{} holds headers without data; diff compares values, so it needs the shards (compare "
                "headers with `pivot inspect` on each)",
                path.string());
  return checkpoint;
}

Result<int> run(const Options& options) {
  PIVOT_TRY(const Checkpoint a, open_side(options.a));
  PIVOT_TRY(const Checkpoint b, open_side(options.b));
  InterruptScope interrupt;
  ProgressBar bar("comparing", ProgressBar::Unit::kBytes);
  DiffOptions diff_options;
  diff_options.threads = options.threads;
  diff_options.stop = &InterruptScope::flag();
  diff_options.progress = [&](std::uint64_t done, std::uint64_t total) {
    bar.update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
  };
  PIVOT_TRY(const DiffReport report, diff_checkpoints(a, b, options.a, options.b, diff_options));
  bar.clear();
  PIVOT_TRY_VOID(write_report(options.output, diff_document(report),
                              [&] { return diff_json(report, options.every_tensor); }));
  if (!report.complete) {
    print_note("interrupted; the report above is partial");
    return kInterruptedExit;
  }
  return report.same() ? 0 : kDiffers;
}

}  // namespace

Run add_diff(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("A", options->a, "Checkpoint folder, ORG/NAME in the Hugging Face cache, or `embedded`")
      ->required();
  app.add_option("B", options->b, "The other one")->required();
  app.add_option("--threads", options->threads, "Threads that compare")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--every-tensor", options->every_tensor, "With --json: list byte-identical tensors too");
  add_report_options(app, options->output, "diff.json");
  app.footer(
      "Exit code 0: the same values everywhere (bytes or scales may be stored otherwise). 1: they differ. "
      "Ctrl-C prints what was reached.");
  return [options] { return run(*options); };
}

}  // namespace pivot::cli
