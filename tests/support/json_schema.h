// Checks a JSON value against the subset of JSON Schema that docs/schema uses, so that documented and real
// output agree.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pivot::test {

// One line per fault ("/modules/3/bytes: is a string, an integer was wanted"); empty where the value
// conforms. `schema_folder` resolves "$ref" to sibling files.
std::vector<std::string> schema_faults(const nlohmann::json& value, const nlohmann::json& schema,
                                       const std::filesystem::path& schema_folder);

// The same for a text against docs/schema/NAME of this repository.
std::vector<std::string> schema_faults(const std::string& json_text, const std::string& schema_name);

}  // namespace pivot::test
