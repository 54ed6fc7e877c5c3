#include "environment.h"

#include <CLI/CLI.hpp>

namespace pivot::cli {

std::string environment_variable(std::string_view option_name) {
  std::string name = "PIVOT_";
  for (const char c : option_name)
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return name;
}

void name_environment_variables(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr() || option->get_lnames().empty()) continue;
    option->envname(environment_variable(option->get_lnames().front()));
  }
}

}  // namespace pivot::cli
