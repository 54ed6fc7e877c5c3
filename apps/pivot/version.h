// What `pivot --version` says.
#pragma once

#include <string>

namespace pivot::cli {

std::string version_text();  // for people, several lines
std::string version_json();  // {"version", "commit", "build_type", "backends": [...], "archs": [...], "grammar": name or null}

}  // namespace pivot::cli
