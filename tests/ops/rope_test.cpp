// Rotary frequencies (specification 2.3; docs/public-faults.md F6) and the oracle's rotation (specification
// check 6).
#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "ops/cpu/reference/rope.h"

namespace pivot {
namespace {

RopeConfig yarn() {
  RopeConfig rope;
  rope.theta = 160000.0;
  rope.factor = 16.0;
  rope.original_max_position_embeddings = 65536;
  return rope;
}

TEST(Frequencies, PlainLayers) {
  const std::vector<float> w = rope_frequencies({}, 64);
  ASSERT_EQ(w.size(), 32u);
  EXPECT_EQ(w[0], 1.0f);
  EXPECT_NEAR(w[1], 0.7498942, 1e-7);
  EXPECT_NEAR(w[31], 1.333521e-4, 1e-10);
}

TEST(Frequencies, YarnLayers) {
  const std::vector<float> w = rope_frequencies(yarn(), 64);
  const auto near = [&](std::size_t i, double expected) {
    EXPECT_NEAR(w[i] / expected, 1.0, 4e-6) << i;  // the texts give six digits
  };
  EXPECT_EQ(w[0], 1.0f);
  near(8, 0.05);
  near(15, 3.63554e-3);
  near(16, 2.265625e-3);
  near(20, 2.969778e-4);
  near(24, 1.95312e-5);
  near(25, 5.372313e-6);
  near(31, 5.680529e-7);
}

TEST(Frequencies, YarnMultipliersOfTheRamp) {
  // low = 15, high = 25.
  RopeConfig plain = yarn();
  plain.factor.reset();
  const std::vector<float> w = rope_frequencies(yarn(), 64), base = rope_frequencies(plain, 64);
  for (std::size_t i = 0; i < 32; ++i) {
    const double ramp = std::min(std::max((static_cast<double>(i) - 15) / 10, 0.0), 1.0);
    EXPECT_NEAR(w[i] / base[i], (1 - ramp) + ramp / 16, 1e-6) << i;
  }
}

TEST(Frequencies, LayerKindsDiffer) {
  // Fault B25 and trap D7: ratio-0 layers stay plain, the others have their own theta.
  ModelConfig config;
  config.compress_ratios = {0, 4, 128};
  config.rope_compress = yarn();
  EXPECT_EQ(rope_frequencies(config.rope(1), 64), rope_frequencies(config.rope(2), 64));
  EXPECT_NE(rope_frequencies(config.rope(0), 64), rope_frequencies(config.rope(1), 64));
}

TEST(Rotation, AnglesAreFp32Products) {
  const std::vector<float> w = rope_frequencies(yarn(), 64);
  for (const std::int32_t position : {0, 1, 127, 4096, 65537, 1000000, 1048575}) {
    const reference::RopeAngles angles(w.data(), 32, position);
    for (std::size_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(static_cast<float>(position) * w[i]);
      EXPECT_NEAR(angles.cos[i], std::cos(angle), 1.2e-7) << position << " " << i;
      EXPECT_NEAR(angles.sin[i], std::sin(angle), 1.2e-7) << position << " " << i;
    }
  }
}

TEST(Rotation, TurnsAdjacentPairs) {
  const float frequency = 1.0f;
  const reference::RopeAngles angles(&frequency, 1, 1);
  float x[2] = {1.0f, 0.0f};
  reference::rotate(x, angles, false, reference::Rounding(Activations::kF32));
  EXPECT_NEAR(x[0], std::cos(1.0), 1e-7);
  EXPECT_NEAR(x[1], std::sin(1.0), 1e-7);
}

TEST(Rotation, InverseUndoesItWithinOneUlp) {
  const std::vector<float> w = rope_frequencies(yarn(), 64);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const std::int32_t position : {1, 130, 99999, 1000000}) {
    const reference::RopeAngles angles(w.data(), 32, position);
    std::vector<float> x(64);
    for (float& value : x) value = round_bf16(normal(random));
    for (const bool bf16 : {true, false}) {
      const reference::Rounding round(bf16 ? Activations::kBf16 : Activations::kF32);
      std::vector<float> y = x;
      reference::rotate(y.data(), angles, false, round);
      reference::rotate(y.data(), angles, true, round);
      for (std::size_t i = 0; i < 64; i += 2) {
        // Both components of a pair share the rounding error of the larger one.
        const double size = std::hypot(x[i], x[i + 1]);
        for (std::size_t j = i; j < i + 2; ++j)
          EXPECT_NEAR(y[j], x[j], size * (bf16 ? 0x1p-7 : 4e-7)) << position << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace pivot
