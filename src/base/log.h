// Logging: one spdlog logger on standard error; standard output belongs to results.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

#include "base/error.h"

namespace pivot {

// Installs the process logger. level: trace, debug, info, warn, error, off.
Result<> init_logging(std::string_view level);

}  // namespace pivot
