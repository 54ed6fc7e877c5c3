// pivot metrics: the table of src/server/metrics/metric_table.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "command.h"
#include "server/metrics/metric_table.h"

namespace pivot::cli {

Run add_metrics(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json,
               "Print {\"metrics\": [{section, name, type, unit, labels: [{name, values}], buckets, help}]}");
  return [json]() -> Result<int> {
    const std::string text = *json ? metric_table_json() + "\n" : metric_table_markdown();
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  };
}

}  // namespace pivot::cli
