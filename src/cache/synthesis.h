// Caches without a prefill, for benchmarks: random rows and states in host memory.
#pragma once

#include <cstdint>
#include <span>

#include "ops/views.h"

namespace pivot {

// Fills every slot and page of the views with random rows, packed as the views' layouts say. REQUIRES: host
// memory; counts as the pool was made with.
void synthesize_host_cache(std::span<const LayerCacheView> layers, std::int64_t num_slots,
                           std::int64_t ratio4_pages, std::int64_t ratio128_pages);

}  // namespace pivot
