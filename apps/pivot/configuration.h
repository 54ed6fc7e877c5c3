// Where an option's value came from, and configuration files: flag over environment over file over default.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace CLI {
class App;
}

namespace pivot::cli {

struct OptionValue {
  std::string name;    // "max-num-seqs"
  std::string value;   // as given; several joined with ", "
  std::string origin;  // "flag", "environment PIVOT_MAX_NUM_SEQS", "file pivot.toml", "default"
};

// Gives every option of `app` that neither flag nor environment set the value that the TOML file has under
// its name ("max-num-seqs" or "max_num_seqs"; lists give several values). Keys may stand in tables of any
// name, which only group them. Returns the names that the file set. Errors: kNotFound, kInvalidData with line
// and column, an unknown key, or a value of the wrong kind.
Result<std::vector<std::string>> apply_config_file(CLI::App& app, const std::string& path);

// Every option of the parsed app except help and the ones in `hidden` (secrets), with its origin.
std::vector<OptionValue> effective_options(const CLI::App& app, const std::vector<std::string>& from_file,
                                           const std::string& file, const std::vector<std::string>& hidden);

}  // namespace pivot::cli
