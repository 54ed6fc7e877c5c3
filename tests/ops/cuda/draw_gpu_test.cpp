// Draws on the GPU against the engine's sampler, at the published vocabulary and at small ones.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "engine/cuda_devices.h"
#include "engine/device_draw.h"

namespace pivot {
namespace {

class DrawGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    Result<std::shared_ptr<Backend>> made = make_cuda_device(0);
    ASSERT_TRUE(made) << made.error().to_string();
    backend = *std::move(made);
  }
  // Draws from rows of `vocab` logits on both sides. Returns how many the device left to the host.
  int expect_equal(const std::vector<float>& logits, std::int64_t vocab,
                   const std::vector<SamplingParams>& params, std::uint64_t counter) {
    const Result<std::byte*> memory =
        backend->allocate(static_cast<std::int64_t>(logits.size() * 4), "test logits");
    EXPECT_TRUE(memory);
    backend->upload(*memory, logits.data(), static_cast<std::int64_t>(logits.size() * 4));
    const auto rows = static_cast<std::int32_t>(static_cast<std::int64_t>(logits.size()) / vocab);
    std::vector<DeviceDraw> draws;
    for (std::int32_t i = 0; i < rows; ++i)  // rows in another order than they lie
      draws.push_back({rows - 1 - i,
                       &params[static_cast<std::size_t>(i)],
                       counter + static_cast<std::uint64_t>(i),
                       {},
                       false});
    const Result<> drawn = draw_on_device(*backend, reinterpret_cast<const float*>(*memory), vocab, draws);
    EXPECT_TRUE(drawn) << drawn.error().to_string();
    int left = 0;
    for (const DeviceDraw& d : draws) {
      const std::span<const float> row(&logits[static_cast<std::size_t>(d.row * vocab)],
                                       static_cast<std::size_t>(vocab));
      const Result<SampledToken> wanted = sample(row, *d.params, d.counter);
      if (d.drawn) {
        EXPECT_TRUE(wanted) << "the device drew " << raw(d.id) << " from a row that has a fault";
        if (wanted) {
          EXPECT_EQ(raw(d.id), raw(wanted->id))
              << "row " << d.row << ", temperature " << d.params->temperature << ", top_p " << d.params->top_p
              << ", top_k " << d.params->top_k;
        }
      }
      left += d.drawn ? 0 : 1;
    }
    backend->release(*memory);
    return left;
  }
  std::shared_ptr<Backend> backend;
};

SamplingParams random_params(std::mt19937& random) {
  SamplingParams p;
  p.temperature = std::vector<float>{0.0f, 0.6f, 1.0f, 1.5f}[random() % 4];
  p.top_p = random() % 2 == 0 ? 1.0f : std::uniform_real_distribution<float>(0.05f, 0.99f)(random);
  p.top_k = random() % 3 == 0 ? static_cast<std::int32_t>(1 + random() % 1024) : 0;
  p.min_p = random() % 3 == 0 ? 0.05f : 0.0f;
  p.seed = random();
  return p;
}

TEST_F(DrawGpu, EqualsTheHostsSampler) {
  std::mt19937 random(4);
  int rows = 0, left = 0;
  for (const std::int64_t vocab :
       {std::int64_t{4}, std::int64_t{512}, std::int64_t{4100}, std::int64_t{129280}})
    for (int round = 0; round < 10; ++round) {
      const std::size_t count = vocab > 10'000 ? 8 : 32;
      std::normal_distribution<float> normal(0.0f, 4.0f);
      std::vector<float> logits(count * static_cast<std::size_t>(vocab));
      for (float& x : logits) x = round % 3 == 1 ? std::round(normal(random)) : normal(random);
      if (round % 3 == 2)
        for (float& x : logits)
          if (random() % 2 == 0) x = -std::numeric_limits<float>::infinity();
      for (std::size_t i = 0; i < count; ++i) logits[i * static_cast<std::size_t>(vocab)] = 0.5f;
      std::vector<SamplingParams> params;
      for (std::size_t i = 0; i < count; ++i) params.push_back(random_params(random));
      left += expect_equal(logits, vocab, params, static_cast<std::uint64_t>(round) * 100);
      rows += static_cast<int>(count);
    }
  EXPECT_LT(left, rows / 4) << "only wide nuclei are the host's";
}

TEST_F(DrawGpu, FaultsAreLeftToTheHost) {
  std::vector<float> logits(4 * 512, 1.0f);
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  logits[512 + 300] = std::numeric_limits<float>::infinity();
  for (std::size_t i = 1024; i < 1536; ++i) logits[i] = -std::numeric_limits<float>::infinity();
  const std::vector<SamplingParams> params(4, SamplingParams::greedy());
  EXPECT_EQ(expect_equal(logits, 512, params, 0), 3);
}

}  // namespace
}  // namespace pivot
