#include "server/handlers/request_log.h"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/log.h"
#include "text/chat/python_json.h"
#include "text/tokenizer/utf8.h"

namespace pivot::server {
namespace {

std::atomic<LogFormat> format_in_use{LogFormat::kText};
// Stands before the payload of a LogLine, which is JSON members already.
constexpr char kFieldsMark = '\x1e';

std::string json_string(std::string_view text) { return python_json::quoted(utf8::repaired(text)); }

// "%*": the message as JSON members.
class JsonMembers final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string_view payload(message.payload.data(), message.payload.size());
    const std::string text = !payload.empty() && payload[0] == kFieldsMark
                                 ? std::string(payload.substr(1))
                                 : fmt::format("\"message\":{}", json_string(payload));
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMembers>(); }
};

bool is_plain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
}

}  // namespace

Result<> init_server_log(LogFormat format, std::string_view level) {
  PIVOT_TRY_VOID(init_logging(level));
  format_in_use = format;
  if (format == LogFormat::kText) return {};
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<JsonMembers>('*').set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l",%*})");
  spdlog::default_logger()->set_formatter(std::move(formatter));
  return {};
}

LogLine::LogLine(std::string_view event) {
  text_ = format_in_use == LogFormat::kJson ? fmt::format("{}\"event\":{}", kFieldsMark, json_string(event))
                                            : std::string(event);
}

LogLine& LogLine::add(std::string_view name, std::string_view value) {
  if (format_in_use == LogFormat::kJson) {
    text_ += fmt::format(",\"{}\":{}", name, json_string(value));
  } else {
    text_ += fmt::format(" {}={}", name, is_plain(value) ? std::string(value) : json_string(value));
  }
  return *this;
}

LogLine& LogLine::add(std::string_view name, std::int64_t value) {
  text_ += format_in_use == LogFormat::kJson ? fmt::format(",\"{}\":{}", name, value)
                                             : fmt::format(" {}={}", name, value);
  return *this;
}

LogLine& LogLine::add_seconds(std::string_view name, double value) {
  text_ += format_in_use == LogFormat::kJson ? fmt::format(",\"{}\":{:.6f}", name, value)
                                             : fmt::format(" {}={:.3f}", name, value);
  return *this;
}

void LogLine::info() const { spdlog::info("{}", text_); }
void LogLine::warn() const { spdlog::warn("{}", text_); }
void LogLine::error() const { spdlog::error("{}", text_); }

}  // namespace pivot::server
