#include "configuration.h"

#include <toml++/toml.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <set>

#include "environment.h"

namespace pivot::cli {
namespace {

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return text;
}

// The command's options, and those of the program that take a value (--log-level).
template <class App>
auto options_of(App& app) {
  auto options = app.get_options();
  std::erase(options, app.get_help_ptr());
  if (auto* program = app.get_parent(); program != nullptr) {
    for (auto* option : program->get_options())
      if (option->get_items_expected_max() > 0) options.push_back(option);
  }
  return options;
}

Result<std::string> scalar_text(const toml::node& node, std::string_view where) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto truth = node.value_exact<bool>()) return std::string(*truth ? "true" : "false");
  if (const auto integer = node.value_exact<std::int64_t>()) return std::to_string(*integer);
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  return fail(ErrorCode::kInvalidData, "{}: a string, number or boolean, or a list of them is wanted", where);
}

class FileReader {
 public:
  FileReader(CLI::App& app, const std::string& path) : app_(app), path_(path) {}

  Result<> read(const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (const toml::table* group = node.as_table()) {
        PIVOT_TRY_VOID(read(*group));
        continue;
      }
      const std::string where =
          fmt::format("{}:{}: {}", path_, node.source().begin.line, std::string_view(key.str()));
      PIVOT_TRY_VOID(set(std::string(key.str()), node, where));
    }
    return {};
  }
  std::vector<std::string> names;

 private:
  CLI::Option* find(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    for (CLI::Option* option : options_of(app_)) {
      const auto& long_names = option->get_lnames();
      if (std::find(long_names.begin(), long_names.end(), name) != long_names.end()) return option;
      if (long_names.empty() && name == "model" && option->get_name() == "MODEL") return option;
    }
    return nullptr;
  }

  Result<> set(const std::string& key, const toml::node& node, const std::string& where) {
    CLI::Option* option = find(key);
    if (option == nullptr) {
      return fail(ErrorCode::kInvalidData, "{}: there is no option of that name; see `pivot serve --help`",
                  where);
    }
    std::vector<std::string> values;
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& item : *list) {
        PIVOT_TRY(std::string text, scalar_text(item, where));
        values.push_back(std::move(text));
      }
    } else {
      PIVOT_TRY(std::string text, scalar_text(node, where));
      values.push_back(std::move(text));
    }
    if (option->count() > 0) return {};  // flag and environment win
    try {
      for (const std::string& value : values) option->add_result(value);
      option->run_callback();
    } catch (const CLI::Error& error) {
      return fail(ErrorCode::kInvalidData, "{}: {}", where, error.what());
    }
    names.push_back(option->get_lnames().empty() ? "model" : option->get_lnames().front());
    return {};
  }

  CLI::App& app_;
  std::string path_;
};

}  // namespace

Result<std::vector<std::string>> apply_config_file(CLI::App& app, const std::string& path) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    if (at.line == 0)
      return fail(ErrorCode::kNotFound, "cannot read the configuration {}: is it there?", path);
    return fail(ErrorCode::kInvalidData, "{}:{}:{}: {}", path, at.line, at.column, error.description());
  }
  FileReader reader(app, path);
  PIVOT_TRY_VOID(reader.read(table));
  return std::move(reader.names);
}

std::vector<OptionValue> effective_options(const CLI::App& app, const std::vector<std::string>& from_file,
                                           const std::string& file, const std::vector<std::string>& hidden) {
  const std::set<std::string> in_file(from_file.begin(), from_file.end());
  std::vector<OptionValue> values;
  for (const CLI::Option* option : options_of(app)) {
    OptionValue value;
    value.name = option->get_lnames().empty() ? "model" : option->get_lnames().front();
    const std::string variable = environment_variable(value.name);
    const char* environment = std::getenv(variable.c_str());
    if (in_file.contains(value.name)) {
      value.origin = "file " + file;
    } else if (option->count() == 0) {
      value.origin = "default";
    } else if (environment != nullptr && !option->get_lnames().empty() &&
               joined(option->results()) == environment) {
      value.origin = "environment " + variable;
    } else {
      value.origin = "flag";
    }
    value.value = option->count() > 0 ? joined(option->results()) : option->get_default_str();
    const bool takes_no_value = option->get_items_expected_max() == 0;
    if (takes_no_value && value.value.empty()) value.value = "false";
    const bool secret = std::find(hidden.begin(), hidden.end(), value.name) != hidden.end();
    if (secret && option->count() > 0) value.value = "(hidden)";
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace pivot::cli
