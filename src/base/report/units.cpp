#include "base/report/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace pivot::report {

std::string format_bytes(double bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  double value = std::fabs(bytes);
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  const char* sign = bytes < 0 ? "-" : "";
  if (unit == 0) return fmt::format("{}{:.0f} B", sign, value);
  return fmt::format("{}{:.2f} {}", sign, value, kUnits[unit]);
}

std::string format_count(std::int64_t value) {
  std::string digits = fmt::format(
      "{}", value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value));
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return (value < 0 ? "-" : "") + digits;
}

std::string format_number(double value, int significant) {
  if (!std::isfinite(value)) return "-";
  if (value == 0.0) return "0";
  const int magnitude = static_cast<int>(std::floor(std::log10(std::fabs(value))));
  if (magnitude >= 6 || magnitude < -4) return fmt::format("{:.{}g}", value, significant);
  const int decimals = significant - 1 - magnitude;
  std::string text = fmt::format("{:.{}f}", value, decimals > 0 ? decimals : 0);
  if (text.find('.') != std::string::npos) {
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string format_tokens(double tokens) {
  if (tokens >= 1e9) return format_number(tokens / 1e9) + "G";
  if (tokens >= 1e6) return format_number(tokens / 1e6) + "M";
  if (tokens >= 1e4) return format_number(tokens / 1e3) + "K";
  return fmt::format("{:.0f}", tokens);
}

std::string format_rate(double per_second) {
  if (!std::isfinite(per_second)) return "-";
  if (per_second >= 1e6) return format_number(per_second / 1e6) + "M";
  if (per_second >= 1e4) return format_number(per_second / 1e3) + "K";
  if (per_second >= 100) return format_count(std::llround(per_second));
  return format_number(per_second);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds >= 3600) {
    const auto minutes = static_cast<std::int64_t>(std::llround(seconds / 60.0));
    return fmt::format("{} h {} min", minutes / 60, minutes % 60);
  }
  if (seconds >= 90) return fmt::format("{} min", format_number(seconds / 60.0));
  if (seconds >= 1) return format_number(seconds) + " s";
  if (seconds >= 1e-3) return format_number(seconds * 1e3) + " ms";
  return format_number(seconds * 1e6) + " us";
}

std::string format_percent(double share) { return fmt::format("{:.1f}%", share * 100.0); }

std::size_t display_width(std::string_view utf8) {
  std::size_t width = 0;
  for (const char byte : utf8) width += (static_cast<unsigned char>(byte) & 0xc0u) != 0x80u ? 1 : 0;
  return width;
}

std::string visible(std::string_view utf8) {
  std::string text;
  for (std::size_t at = 0; at < utf8.size(); ++at) {
    const auto byte = static_cast<unsigned char>(utf8[at]);
    const auto next = at + 1 < utf8.size() ? static_cast<unsigned char>(utf8[at + 1]) : 0u;
    if (byte == 0xc2u && next >= 0x80u && next < 0xa0u) {  // U+0080 to U+009F, among them the 8-bit CSI
      text += fmt::format("\\x{:02x}", next);
      ++at;
    } else if ((byte < 0x20u && byte != '\n') || byte == 0x7fu) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += utf8[at];
    }
  }
  return text;
}

std::string truncate(std::string_view utf8, std::size_t width) {
  if (display_width(utf8) <= width) return std::string(utf8);
  if (width == 0) return {};
  std::size_t columns = 0;
  std::size_t at = 0;
  while (at < utf8.size()) {
    if ((static_cast<unsigned char>(utf8[at]) & 0xc0u) != 0x80u) {
      if (columns + 1 == width) break;
      ++columns;
    }
    ++at;
  }
  return std::string(utf8.substr(0, at)) + "…";
}

}  // namespace pivot::report
