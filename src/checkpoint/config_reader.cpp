#include "checkpoint/config_reader.h"

#include <algorithm>
#include <cmath>

namespace pivot {

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMaxShown = 60;
  std::string text =
      value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);  // ASCII: safe to cut
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::wrong_type(std::string_view key, std::string_view wanted, const nlohmann::json& found) {
  problems_.add(ErrorCode::kInvalidData, "key \"{}\" is {}; {} was wanted", full_name(key), shown(found),
                wanted);
}

void ConfigReader::missing(std::string_view key, std::string_view wanted) {
  problems_.add(
      ErrorCode::kInvalidData,
      "key \"{}\" is missing ({} was wanted); it decides the numerics and is never guessed, so take it from "
      "the model's published config.json",
      full_name(key), wanted);
}

std::optional<std::int64_t> ConfigReader::as_integer(const nlohmann::json& value) const {
  constexpr double kExact = 9007199254740992.0;  // 2^53: whole numbers up to here are exact as double
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(kExact)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::abs(number) <= kExact && number == std::floor(number)) return static_cast<std::int64_t>(number);
  }
  return std::nullopt;
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t min, std::int64_t max) {
  const std::string wanted = fmt::format("an integer from {} to {}", min, max);
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    missing(key, wanted);
    return 0;
  }
  const auto number = as_integer(*value);
  if (!number || *number < min || *number > max) {
    wrong_type(key, wanted, *value);
    return 0;
  }
  return *number;
}

double ConfigReader::number(std::string_view key, double above, double max) {
  const std::string wanted = fmt::format("a number above {} and up to {}", above, max);
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    missing(key, wanted);
    return 0;
  }
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number > above && number <= max)) {
    wrong_type(key, wanted, *value);
    return 0;
  }
  return number;
}

bool ConfigReader::boolean(std::string_view key) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    missing(key, "true or false");
    return false;
  }
  if (!value->is_boolean()) {
    wrong_type(key, "true or false", *value);
    return false;
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::string(std::string_view key) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    wrong_type(key, "a string", *value);
    return std::nullopt;
  }
  return value->get<std::string>();
}

void ConfigReader::require_one_of(std::string_view key, std::initializer_list<std::string_view> allowed,
                                  bool required) {
  std::string wanted;
  for (std::string_view word : allowed) wanted += (wanted.empty() ? "\"" : ", \"") + std::string(word) + '"';
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (required) missing(key, wanted);
    return;
  }
  if (value->is_string()) {
    const auto& word = value->get_ref<const std::string&>();
    if (std::find(allowed.begin(), allowed.end(), word) != allowed.end()) return;
  }
  problems_.add(ErrorCode::kUnsupported, "key \"{}\" is {}; only {} is supported", full_name(key),
                shown(*value), wanted);
}

void ConfigReader::require_equal_if_present(std::string_view key, const nlohmann::json& value,
                                            std::string_view why) {
  const nlohmann::json* found = find(key);
  if (found == nullptr || *found == value) return;
  problems_.add(ErrorCode::kUnsupported, "key \"{}\" is {}; only {} is supported, because {}", full_name(key),
                shown(*found), shown(value), why);
}

}  // namespace pivot
