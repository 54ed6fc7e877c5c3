// Which kernels are chosen, and what is said about it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "ops/cpu/simd/isa.h"

namespace pivot::simd {
namespace {

TEST(SimdChoice, NamesAreReadAsWritten) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) EXPECT_EQ(parse_isa(to_string(isa)), isa);
  EXPECT_EQ(parse_isa("sse2"), std::nullopt);
}

TEST(SimdChoice, TheFastestIsTakenUnlessTheEnvironmentNamesAnother) {
  ::unsetenv("PIVOT_CPU_ISA");
  EXPECT_EQ(choose_isa().value(), supported_isas().back());
  ::setenv("PIVOT_CPU_ISA", "portable", 1);
  EXPECT_EQ(choose_isa().value(), Isa::kPortable);
  ::setenv("PIVOT_CPU_ISA", "vax", 1);
  ASSERT_FALSE(choose_isa().has_value());
  EXPECT_EQ(choose_isa().error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(choose_isa().error().to_string().find("portable"), std::string::npos);
  if (supported_isas().back() != Isa::kAvx512) {
    ::setenv("PIVOT_CPU_ISA", "avx512", 1);
    ASSERT_FALSE(choose_isa().has_value());
    EXPECT_EQ(choose_isa().error().code, ErrorCode::kUnsupported);
  }
  ::unsetenv("PIVOT_CPU_ISA");
}

TEST(SimdChoice, OneLineOnACapableCpu) {
  const auto lines = describe_choice(Isa::kAvx2, {Isa::kPortable, Isa::kAvx2}, 0, 2);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "CPU kernels: avx2, 2 thread(s) on 2 usable core(s)");
}

TEST(SimdChoice, ACpuWithoutAvx2IsToldSo) {
  const auto lines = describe_choice(Isa::kPortable, {Isa::kPortable}, 4, 8);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("no AVX2"), std::string::npos);
  // One that has it and was asked for the portable kernels is not.
  EXPECT_EQ(describe_choice(Isa::kPortable, {Isa::kPortable, Isa::kAvx2}, 4, 8).size(), 1u);
}

TEST(SimdChoice, FewerCoresThanAskedForAreSaidWithNumbers) {
  const auto lines = describe_choice(Isa::kAvx2, {Isa::kPortable, Isa::kAvx2}, 8, 2);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("8 threads"), std::string::npos);
  EXPECT_NE(lines[1].find("2 core"), std::string::npos);
}

}  // namespace
}  // namespace pivot::simd
