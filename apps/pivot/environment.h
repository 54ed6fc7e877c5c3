// The environment-variable form of options: --max-tokens is PIVOT_MAX_TOKENS.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace pivot::cli {

// "max-tokens" -> "PIVOT_MAX_TOKENS".
std::string environment_variable(std::string_view option_name);

// Lets every option of `app` that has a long name and is not --help read its variable.
void name_environment_variables(CLI::App& app);

}  // namespace pivot::cli
