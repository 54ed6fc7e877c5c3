// Quantities as people read them. Exact bytes belong in JSON; these are for tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pivot::report {

std::string format_bytes(double bytes);        // "148.65 GiB", "584 B"
std::string format_count(std::int64_t value);  // "72,317"
std::string format_tokens(double tokens);      // "1.05M", "16.5M", "131K", "512"
std::string format_rate(double per_second);    // "1,274", "52.2K", "3.06M"
std::string format_seconds(double seconds);    // "1 h 23 min", "4.2 s", "380 us"
std::string format_percent(double share);      // 0.934 -> "93.4%"
// Significant digits without a trailing ".0": 3 -> "3", 0.123456 -> "0.123".
std::string format_number(double value, int significant = 3);

// Columns that UTF-8 text takes on a terminal, one per code point (combining marks are not expected in
// reports).
std::size_t display_width(std::string_view utf8);
// Control characters other than line breaks spelled out ("\\x1b"): a hostile tensor name must not drive a
// terminal.
std::string visible(std::string_view utf8);
// Cuts to at most `width` columns, the last one an ellipsis where something was cut.
std::string truncate(std::string_view utf8, std::size_t width);

}  // namespace pivot::report
