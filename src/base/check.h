// PIVOT_CHECK: an always-on assertion for programmer errors. Prints its values and aborts. Nothing a user
// sends may reach one; the fuzz targets prove it for the parsers.
#pragma once

#include <fmt/format.h>

#include <string>

namespace pivot::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& values);
}  // namespace pivot::detail

#define PIVOT_CHECK(condition, ...)                                                                 \
  do {                                                                                              \
    if (!(condition)) [[unlikely]]                                                                  \
      ::pivot::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
