#include "support/json_schema.h"

#include <algorithm>
#include <fstream>

#include "support/test_data.h"

namespace pivot::test {

namespace {

using nlohmann::json;

json load(const std::filesystem::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  return type == "null" && value.is_null();
}

void check(const json& value, const json& schema, const std::filesystem::path& folder, const std::string& at,
           std::vector<std::string>& faults) {
  const std::string where = at.empty() ? "/" : at;
  if (schema.contains("$ref"))
    return check(value, load(folder / schema["$ref"].get<std::string>()), folder, at, faults);
  if (schema.contains("const") && value != schema["const"])
    faults.push_back(where + ": is " + value.dump() + ", " + schema["const"].dump() + " was wanted");
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    faults.push_back(where + ": is " + value.dump() + ", one of " + schema["enum"].dump() + " was wanted");
  if (schema.contains("type")) {
    const json& wanted = schema["type"];
    const bool fits = wanted.is_array() ? std::any_of(wanted.begin(), wanted.end(),
                                                      [&](const json& one) { return has_type(value, one); })
                                        : has_type(value, wanted);
    if (!fits) faults.push_back(where + ": is " + value.type_name() + ", " + wanted.dump() + " was wanted");
  }
  if (value.is_object()) {
    for (const json& key : schema.value("required", json::array()))
      if (!value.contains(key.get<std::string>())) faults.push_back(where + ": has no " + key.dump());
    const json properties = schema.value("properties", json::object());
    const json others = schema.value("additionalProperties", json(true));
    for (const auto& [key, member] : value.items()) {
      if (properties.contains(key)) {
        check(member, properties[key], folder, at + "/" + key, faults);
      } else if (others.is_object()) {
        check(member, others, folder, at + "/" + key, faults);
      } else if (others == json(false)) {
        faults.push_back(where + ": has \"" + key + "\", which the schema does not know");
      }
    }
  }
  if (value.is_array() && schema.contains("items"))
    for (std::size_t i = 0; i < value.size(); ++i)
      check(value[i], schema["items"], folder, at + "/" + std::to_string(i), faults);
}

}  // namespace

std::vector<std::string> schema_faults(const json& value, const json& schema,
                                       const std::filesystem::path& schema_folder) {
  std::vector<std::string> faults;
  check(value, schema, schema_folder, "", faults);
  return faults;
}

std::vector<std::string> schema_faults(const std::string& json_text, const std::string& schema_name) {
  const std::filesystem::path folder = source_dir() / "docs" / "schema";
  return schema_faults(json::parse(json_text), load(folder / schema_name), folder);
}

}  // namespace pivot::test
