#include "report_output.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "base/report/html.h"
#include "base/report/text.h"
#include "terminal.h"

namespace pivot::cli {

void add_report_options(CLI::App& app, ReportOutput& output, const std::string& schema) {
  app.add_flag("--json", output.json, "Print JSON instead of text (docs/schema/" + schema + ")");
  app.add_option("--html", output.html, "Also write the report as one HTML page with charts")
      ->type_name("FILE");
}

Result<> write_report(const ReportOutput& output, const report::Document& document,
                      const std::function<std::string()>& json) {
  if (!output.html.empty()) PIVOT_TRY_VOID(write_file(output.html, report::render_html(document)));
  // A file or pipe gets lines of a width that people read; a terminal gets its own, within reason.
  constexpr int kFileWidth = 120;
  constexpr int kWidest = 200;
  const int width =
      is_terminal(STDOUT_FILENO) ? std::clamp(terminal_width(STDOUT_FILENO), 60, kWidest) : kFileWidth;
  const std::string text =
      output.json ? json() + "\n" : report::render_text(document, {width, wants_color(STDOUT_FILENO)});
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return fail(ErrorCode::kIo, "cannot write the report to standard output");
  return {};
}

}  // namespace pivot::cli
