// Typed, range-checked access to the keys of a config object; every failure becomes a problem that names the
// key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/problems.h"

namespace pivot {

class ConfigReader {
 public:
  // `prefix` is put before key names in messages ("rope_scaling."). `object` must be a JSON object that
  // outlives this.
  ConfigReader(const nlohmann::json& object, std::string prefix, Problems& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  // The value, or nullptr where the key is absent or null.
  const nlohmann::json* find(std::string_view key) const;
  std::string full_name(std::string_view key) const { return prefix_ + std::string(key); }

  // Required numbers within [min, max]; 0 after a problem. An integer may be written as 16.0.
  std::int64_t integer(std::string_view key, std::int64_t min, std::int64_t max);
  // Strictly above `above` and at most `max`, finite.
  double number(std::string_view key, double above, double max);
  bool boolean(std::string_view key);
  // The string where the key is present; a value of another type is a problem.
  std::optional<std::string> string(std::string_view key);
  // A problem unless the string is one of `allowed`. `required`: absence is a problem too.
  void require_one_of(std::string_view key, std::initializer_list<std::string_view> allowed, bool required);
  // A problem where the key is present with another value than the only one supported.
  void require_equal_if_present(std::string_view key, const nlohmann::json& value, std::string_view why);

  Problems& problems() { return problems_; }

 private:
  std::optional<std::int64_t> as_integer(const nlohmann::json& value) const;
  void wrong_type(std::string_view key, std::string_view wanted, const nlohmann::json& found);
  void missing(std::string_view key, std::string_view wanted);

  const nlohmann::json& object_;
  std::string prefix_;
  Problems& problems_;
};

// A JSON value for a message, cut where long.
std::string shown(const nlohmann::json& value);

}  // namespace pivot
