// Log lines with fields: JSON for machines, key=value for people; every line of a request carries its id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pivot::server {

enum class LogFormat : std::uint8_t { kText, kJson };
// Sets the process's logger: one JSON object a line, {"time", "level", ...}, or text. Levels as
// init_logging's.
Result<> init_server_log(LogFormat format, std::string_view level);

// One line: `event` and its fields, in the order given.
class LogLine {
 public:
  explicit LogLine(std::string_view event);
  LogLine& add(std::string_view name, std::string_view value);
  LogLine& add(std::string_view name, const char* value) { return add(name, std::string_view(value)); }
  LogLine& add(std::string_view name, std::int64_t value);
  LogLine& add_seconds(std::string_view name, double value);
  void info() const;
  void warn() const;
  void error() const;

 private:
  std::string text_;
};

}  // namespace pivot::server
