// Typed reading of a JSON object's fields: every error names the field, what is wanted and what was found;
// fields that nobody asked for can be listed.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/body.h"

namespace pivot::api {

class Fields {
 public:
  // `path` stands before the names in errors: "" for the body itself, "messages[3]". The object must outlive
  // this.
  Fields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {}
  // 400 where the value is no object.
  static ApiResult<Fields> of(const Json& value, std::string path);

  // The value of a field; nullptr where it is absent or null, which are the same everywhere here.
  const Json* get(std::string_view name);
  bool has(std::string_view name) { return get(name) != nullptr; }
  std::string path(std::string_view name) const;

  ApiResult<std::optional<double>> number(std::string_view name, double low, double high);
  ApiResult<std::optional<std::int64_t>> integer(std::string_view name, std::int64_t low, std::int64_t high);
  ApiResult<std::optional<bool>> boolean(std::string_view name);
  ApiResult<std::optional<std::string>> string(std::string_view name);
  ApiResult<std::string> required_string(std::string_view name);
  ApiResult<const Json*> list(std::string_view name);  // nullptr where absent
  ApiResult<std::optional<Fields>> object(std::string_view name);
  // A field that means a feature that is not there: 400 naming it where it is present and not false.
  ApiResult<> refuse(std::string_view name, std::string_view why);

  // Marks fields as known although nothing reads them.
  void ignore(std::initializer_list<std::string_view> names);
  // Names of fields that were neither read nor ignored, as paths.
  std::vector<std::string> unknown() const;

 private:
  const Json* object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// One item of a list as a number or integer, for lists of token ids and the like.
ApiResult<std::int64_t> as_integer(const Json& value, const std::string& path, std::int64_t low,
                                   std::int64_t high);
ApiResult<double> as_number(const Json& value, const std::string& path, double low, double high);
ApiResult<std::string> as_string(const Json& value, const std::string& path);

}  // namespace pivot::api
