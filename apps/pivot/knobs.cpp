// pivot knobs: the table of src/ops/knobs.h.
#include "ops/knobs.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

std::string as_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const KnobInfo& knob : knob_table()) {
    nlohmann::ordered_json entry;
    entry["name"] = knob.name;
    entry["values"] = knob.values;
    entry["default"] = knob.default_value;
    entry["effect"] = knob.effect;
    entry["changes_state"] = knob.changes_state;
    list.push_back(std::move(entry));
  }
  nlohmann::ordered_json document;
  document["knobs"] = std::move(list);
  return document.dump(2);
}

std::string as_text() {
  const Style style = style_for(1);
  std::string text;
  for (const KnobInfo& knob : knob_table()) {
    text +=
        fmt::format("{}{}{}  {}  (default {}{})\n    {}\n", style.bold, knob.name, style.reset, knob.values,
                    knob.default_value, knob.changes_state ? "; changes state bytes" : "", knob.effect);
  }
  text +=
      "\nSet with --knob name=value on generate, chat, logits, serve and recall. The defaults are the "
      "published\n"
      "reference's numerics; state made under one value of a knob that changes state bytes is never used "
      "under "
      "another.\n";
  return text;
}

}  // namespace

Run add_knobs(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "Print {\"knobs\": [{name, values, default, effect, changes_state}]}");
  return [json]() -> Result<int> {
    const std::string text = *json ? as_json() + "\n" : as_text();
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  };
}

}  // namespace pivot::cli
