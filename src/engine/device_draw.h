// Drawing tokens where the logits are: a back-end that can do it reads back a token a sequence instead of a
// row of logits. engine/sampler.h says what is drawn.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "engine/sampler.h"
#include "ops/ops.h"

namespace pivot {

struct DeviceDraw {
  std::int32_t row = 0;                    // of the step's logits
  const SamplingParams* params = nullptr;  // device_draw_takes()
  std::uint64_t counter = 0;
  TokenId id{};        // valid when `drawn`
  bool drawn = false;  // false: the host has to draw from the row, which may hold a fault
};

// Whether this back-end draws, and is switched to (device_sampling of set_backend_switch; off by default).
bool draws_on_device(Backend& backend);
// Whether a draw needs nothing but its row: no penalties, bias or logprobs, and top_k within the device's
// limit. Grammar masks and forbidden tokens are the caller's to rule out.
bool device_draw_takes(const SamplingParams& params);
// One token for each draw from fp32 `logits` [..][vocab] in the back-end's memory; waits for them. Errors:
// kInternal when the device failed.
Result<> draw_on_device(Backend& backend, const float* logits, std::int64_t vocab,
                        std::span<DeviceDraw> draws);

}  // namespace pivot
