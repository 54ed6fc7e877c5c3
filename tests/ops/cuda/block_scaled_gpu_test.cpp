// What the simulation (block_scaled_test.cpp) assumes about the instructions of sm_120a, asked of the
// hardware, and the kernels against the plain product. Skips on any other GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>

#include "block_scaled_model.h"
#include "ops/cuda/block_scaled/block_scaled.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

bool has_instructions() {
  int count = 0, major = 0, minor = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess &&
         has_block_scaled(major, minor);
}

// Codes of 0, 1, 2 and -1 and scales of 1 and 2: integers so small that an adder of any width sums them
// exactly, in any order. Every lane, register, byte and selector has its own random value, so a wrong place
// shows.
template <BlockKind K>
void expect_model(std::mt19937& random) {
  constexpr std::uint8_t kE4m3[4] = {0x00, 0x38, 0x40, 0xb8}, kE2m1[4] = {0, 2, 4, 10};
  const auto word = [&](bool e4m3, bool nibbles) {
    std::uint32_t w = 0;
    if (nibbles)
      for (int i = 0; i < 8; ++i) w |= std::uint32_t{kE2m1[random() % 4]} << (4 * i);
    else
      for (int i = 0; i < 4; ++i)
        w |= std::uint32_t{e4m3 ? kE4m3[random() % 4] : static_cast<std::uint8_t>(kE2m1[random() % 4] << 2)}
             << (8 * i);
    return w;
  };
  const auto scales = [&] {
    std::uint32_t w = 0;
    for (int i = 0; i < 4; ++i)
      w |= (K == BlockKind::kNvfp4 ? random() % 2 * 8 + 0x38 : 127 + random() % 2) << (8 * i);
    return w;
  };
  for (int round = 0; round < 50; ++round)
    for (int step = 0; step < block_steps(K); ++step) {
      LaneOperands lanes[32];
      for (LaneOperands& lane : lanes) {
        for (auto& a : lane.a) a = word(K == BlockKind::kFp8, K == BlockKind::kNvfp4);
        for (auto& b : lane.b) b = word(true, K == BlockKind::kNvfp4);
        lane.scale_a = scales();
        lane.scale_b = scales();
      }
      double wanted[16][8] = {};
      simulate<K>(lanes, block_scale_byte(K, step), wanted);
      float d[32][4];
      run_mma_probe(K, step, lanes, d);
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i)
          ASSERT_EQ(d[lane][i], wanted[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2])
              << "kind " << static_cast<int>(K) << ", step " << step << ", lane " << lane << ", register "
              << i;
    }
}

TEST(BlockScaledGpu, TheInstructionsAreWhatTheModelSays) {
  if (!has_instructions()) GTEST_SKIP() << "no GPU with block-scaled mma.sync (sm_120)";
  std::mt19937 random(3);
  expect_model<BlockKind::kFp8>(random);
  expect_model<BlockKind::kFp4>(random);
  expect_model<BlockKind::kNvfp4>(random);
}

template <class T>
class DeviceCopy {
 public:
  explicit DeviceCopy(const std::vector<T>& host) {
    require_cuda(cudaMalloc(&memory_, host.size() * sizeof(T)), "test memory");
    require_cuda(cudaMemcpy(memory_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
                 "test memory");
  }
  ~DeviceCopy() { cudaFree(memory_); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  T* get() const { return static_cast<T*>(memory_); }

 private:
  void* memory_ = nullptr;
};

// Sizes on both sides of every tile; rows that fill no CTA.
TEST(BlockScaledGpu, DenseProductsAreThePlainOnesUpToTheOrderOfSums) {
  if (!has_instructions()) GTEST_SKIP() << "no GPU with block-scaled mma.sync (sm_120)";
  std::mt19937 random(9);
  double worst = 0;
  for (const std::int64_t tokens : {1, 8, 9, 33, 64, 65, 200})
    for (const std::int64_t rows : {16, 176})
      for (const std::int64_t cols : {128, 640}) {
        const Weights w = random_weights(MatrixFormat::kFP8, rows, cols, random);
        const Tokens x = random_tokens<BlockKind::kFp8>(tokens, cols, random);
        const DeviceCopy codes(w.tiled_codes), scales(w.tiled_scales), x_codes(x.codes), x_scales(x.scales);
        const DeviceCopy out(std::vector<float>(static_cast<std::size_t>(tokens * rows), NAN));
        BlockJob job;
        job.weights = w.view;
        job.weights.codes = reinterpret_cast<const std::byte*>(codes.get());
        job.weights.scales = reinterpret_cast<const std::byte*>(scales.get());
        job.input = {x_codes.get(), x_scales.get(), block_row_bytes(BlockKind::kFp8, cols),
                     block_row_scale_bytes(BlockKind::kFp8, cols)};
        job.out = out.get();
        job.out_stride = rows;
        job.out_bf16 = false;
        launch_block_dense({&job, 1}, tokens, nullptr);
        std::vector<float> got(static_cast<std::size_t>(tokens * rows));
        require_cuda(cudaMemcpy(got.data(), out.get(), got.size() * sizeof(float), cudaMemcpyDeviceToHost),
                     "sums");
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t r = 0; r < rows; ++r) {
            double sum = 0, size = 0;
            for (std::int64_t k = 0; k < cols; ++k) {
              const double term = w.value(r, k) * x.values[static_cast<std::size_t>(t * cols + k)];
              sum += term;
              size += std::fabs(term);
            }
            const double error = std::fabs(got[static_cast<std::size_t>(t * rows + r)] - sum) / size;
            worst = std::max(worst, error);
            // 2^-13: what an adder of 14 bits would leave; fp32 leaves 2^-22 or so.
            ASSERT_LT(error, 0x1p-13) << tokens << " tokens, row " << r << " of " << rows << ", token " << t;
          }
      }
  RecordProperty("worst_error_over_sum_of_sizes", std::to_string(worst));
  std::printf("largest error over the sum of sizes: %.3g (an fp32 adder leaves about 1e-7)\n", worst);
}

}  // namespace
}  // namespace pivot::cuda
