#include "server/api/fields.h"

#include <fmt/format.h>

#include <charconv>

namespace pivot::api {
namespace {

tl::unexpected<ApiError> wrong_kind(const std::string& path, std::string_view wanted, const Json& found) {
  return bad_field(path, fmt::format("`{}` is {}; found {}", path, wanted, found.kind_name()));
}

}  // namespace

ApiResult<double> as_number(const Json& value, const std::string& path, double low, double high) {
  if (!value.is(JsonKind::kInteger) && !value.is(JsonKind::kFloat))
    return wrong_kind(path, "a number", value);
  double number = 0;
  std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
  if (!(number >= low && number <= high)) {
    return bad_field(path, fmt::format("`{}` is a number from {} to {}; found {}", path, low, high,
                                       quotable(value.text, 40)));
  }
  return number;
}

ApiResult<std::int64_t> as_integer(const Json& value, const std::string& path, std::int64_t low,
                                   std::int64_t high) {
  const bool whole =
      value.is(JsonKind::kFloat) && value.text.ends_with(".0");  // 16.0 as some clients write it
  if (!value.is(JsonKind::kInteger) && !whole) return wrong_kind(path, "an integer", value);
  const std::string_view text = std::string_view(value.text).substr(0, value.text.size() - (whole ? 2 : 0));
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < low || number > high) {
    return bad_field(path, fmt::format("`{}` is an integer from {} to {}; found {}", path, low, high,
                                       quotable(value.text, 40)));
  }
  return number;
}

ApiResult<std::string> as_string(const Json& value, const std::string& path) {
  if (!value.is(JsonKind::kString)) return wrong_kind(path, "a string", value);
  return value.text;
}

ApiResult<Fields> Fields::of(const Json& value, std::string path) {
  if (!value.is(JsonKind::kObject)) return wrong_kind(path, "an object", value);
  return Fields(value, std::move(path));
}

const Json* Fields::get(std::string_view name) {
  known_.emplace(name);
  const Json* value = object_->find(name);
  return value == nullptr || value->is(JsonKind::kNull) ? nullptr : value;
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

ApiResult<std::optional<double>> Fields::number(std::string_view name, double low, double high) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  return as_number(*value, path(name), low, high);
}

ApiResult<std::optional<std::int64_t>> Fields::integer(std::string_view name, std::int64_t low,
                                                       std::int64_t high) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  return as_integer(*value, path(name), low, high);
}

ApiResult<std::optional<bool>> Fields::boolean(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is(JsonKind::kTrue)) return true;
  if (value->is(JsonKind::kFalse)) return false;
  return wrong_kind(path(name), "true or false", *value);
}

ApiResult<std::optional<std::string>> Fields::string(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  return as_string(*value, path(name));
}

ApiResult<std::string> Fields::required_string(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr)
    return bad_field(path(name), fmt::format("`{}` is required and is a string", path(name)));
  return as_string(*value, path(name));
}

ApiResult<const Json*> Fields::list(std::string_view name) {
  const Json* value = get(name);
  if (value != nullptr && !value->is(JsonKind::kArray)) return wrong_kind(path(name), "a list", *value);
  return value;
}

ApiResult<std::optional<Fields>> Fields::object(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  return of(*value, path(name));
}

ApiResult<> Fields::refuse(std::string_view name, std::string_view why) {
  const Json* value = get(name);
  if (value == nullptr || value->is(JsonKind::kFalse)) return {};
  ApiError error;
  error.param = path(name);
  error.message = fmt::format("`{}` is not supported: {}", path(name), why);
  error.code = "unsupported";
  return tl::unexpected(std::move(error));
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& member : object_->members) {
    if (!known_.contains(member.key)) names.push_back(path(quotable(member.key)));
  }
  return names;
}

}  // namespace pivot::api
