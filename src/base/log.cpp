#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace pivot {

Result<> init_logging(std::string_view level) {
  static constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error", "off"};
  if (std::find(std::begin(kLevels), std::end(kLevels), level) == std::end(kLevels)) {
    return fail(ErrorCode::kInvalidArgument,
                "log level is one of trace, debug, info, warn, error, off; found \"{}\"", level);
  }
  auto logger = spdlog::get("pivot");
  if (!logger) logger = spdlog::stderr_color_mt("pivot");
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(std::string(level)));
  spdlog::set_default_logger(logger);
  return {};
}

}  // namespace pivot
