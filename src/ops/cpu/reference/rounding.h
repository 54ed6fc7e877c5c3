// The rounding between operators (knob activations): bf(x) of the specification, or nothing.
#pragma once

#include <cstdint>

#include "numeric/formats.h"
#include "ops/knobs.h"

namespace pivot::reference {

struct Rounding {
  bool bf16 = true;

  Rounding() = default;
  explicit Rounding(Activations activations) : bf16(activations == Activations::kBf16) {}
  float operator()(float x) const { return bf16 ? round_bf16(x) : x; }
  void apply(float* x, std::int64_t count) const {
    if (!bf16) return;
    for (std::int64_t i = 0; i < count; ++i) x[i] = round_bf16(x[i]);
  }
};

}  // namespace pivot::reference
