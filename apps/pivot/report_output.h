// How the commands that answer with a report print it: text on standard output, or --json, and an HTML page
// with --html.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "base/report/document.h"

namespace CLI {
class App;
}

namespace pivot::cli {

struct ReportOutput {
  bool json = false;
  std::string html;  // file to write; empty: none
};

// --json and --html FILE. `schema` names the file under docs/schema that describes the JSON.
void add_report_options(CLI::App& app, ReportOutput& output, const std::string& schema);

// Writes the page first, so that a full disk is told before a long text scrolls by.
Result<> write_report(const ReportOutput& output, const report::Document& document,
                      const std::function<std::string()>& json);

}  // namespace pivot::cli
