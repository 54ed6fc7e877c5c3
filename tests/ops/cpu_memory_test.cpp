// A model that does not fit is refused with numbers.
#include <gtest/gtest.h>

#include "ops/cpu/simd/backend.h"
#include "ops/cpu/simd/memory.h"
#include "ops/parity_case.h"

namespace pivot::test {
namespace {

TEST(CpuMemory, WeightsBeyondTheMemoryAreRefusedWithNumbers) {
  EXPECT_TRUE(simd::check_weights_fit(100, 100).has_value());
  const Result<> refused = simd::check_weights_fit(std::int64_t{149} << 30, std::int64_t{24} << 30);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  for (const char* number : {"149.0 GiB", "24.0 GiB", "125.0 GiB"})
    EXPECT_NE(refused.error().to_string().find(number), std::string::npos) << refused.error().to_string();
}

TEST(CpuMemory, SharedMatricesCountOnce) {
  const auto model = random_model({});
  ModelWeights aliased = *model;
  const std::int64_t bytes = simd::weight_bytes(*model);
  EXPECT_GT(bytes, model->head.code_bytes() + model->embed.code_bytes());
  const ExpertWeights& first = aliased.layers[0].ffn.experts[0];
  const ExpertWeights second = aliased.layers[0].ffn.experts[1];
  aliased.layers[0].ffn.experts[1] = first;
  const auto of = [](const Matrix& m) { return m.code_bytes() + m.scale_bytes(); };
  EXPECT_EQ(simd::weight_bytes(aliased), bytes - of(second.w1) - of(second.w2) - of(second.w3));
}

// A checkpoint larger than any machine, by its shapes alone: nothing of it may be read.
TEST(CpuMemory, TheBackendRefusesBeforeItReads) {
  const auto model = random_model({});
  ModelWeights huge = *model;
  huge.head.rows = std::int64_t{1} << 50;
  const Result<> refused = make_simd_backend(1)->supports(huge, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_GT(simd::usable_memory_bytes(), std::int64_t{1} << 20);
}

}  // namespace
}  // namespace pivot::test
