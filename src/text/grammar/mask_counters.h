#pragma once

#include <atomic>
#include <cstdint>

namespace pivot {

struct MaskCounters {
  std::atomic<std::uint64_t> masks{0};
  std::atomic<std::uint64_t> nanoseconds{0};
};

}  // namespace pivot
