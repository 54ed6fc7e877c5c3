// What the kernel says of this process.
#pragma once

#include <cstdint>

namespace pivot {

struct ProcessFigures {
  double cpu_seconds = 0;  // user and system
  std::int64_t resident_bytes = 0;
  std::int32_t open_files = 0;
};

// 0 where the kernel does not tell.
ProcessFigures process_figures();
// Unix time.
double process_start_time_seconds();

}  // namespace pivot
