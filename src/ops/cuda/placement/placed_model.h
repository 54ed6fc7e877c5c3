// A model's weights in device memory: tiled matrices, fp32 vectors, and the per-layer expert tables.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_weights.h"
#include "ops/cuda/placement/device_expert.h"

namespace pivot::cuda {

class PlacedModel {
 public:
  // Copies everything to the current device. Errors: kOutOfMemory with wanted and free bytes.
  static Result<std::shared_ptr<PlacedModel>> create(const ModelWeights& weights);
  // Random weights of the config's shapes; experts beyond the resident ones are aliases of them.
  static Result<std::shared_ptr<PlacedModel>> synthesize(const ModelConfig& config,
                                                         std::int64_t resident_experts, cudaStream_t stream);
  ~PlacedModel();
  PlacedModel(const PlacedModel&) = delete;
  PlacedModel& operator=(const PlacedModel&) = delete;

  // The same structure as the source, every pointer in device memory.
  const ModelWeights& weights() const { return weights_; }
  // Device table of one layer's experts, the shared one last: [n_routed_experts + 1].
  const DeviceExpert* experts(const MoeWeights& layer) const { return experts_.at(&layer); }
  const std::byte* memory() const { return memory_; }
  std::int64_t bytes() const { return capacity_; }
  const float* rope_main() const { return rope_main_; }
  const float* rope_compress() const { return rope_compress_; }

 private:
  PlacedModel() = default;
  std::byte* take(std::int64_t bytes);
  Matrix place(const Matrix& matrix);
  Matrix place_rows(const Matrix& matrix);
  // mean and spread: what a synthetic vector holds.
  FloatSpan place(FloatSpan values, float mean = 1.0f, float spread = 0.0f);
  void place(HyperConnectionWeights& w);
  void place(CompressorWeights& w);
  void place(ExpertWeights& w);
  void place(LayerWeights& layer);
  Result<> allocate(std::int64_t bytes);
  Result<> fill(const ModelWeights& source);
  void upload(std::byte* device, const void* host, std::int64_t bytes);

  ModelWeights weights_;
  std::unordered_map<const MoeWeights*, const DeviceExpert*> experts_;
  std::byte* memory_ = nullptr;
  std::int64_t capacity_ = 0, used_ = 0;
  Result<> status_{};
  const float* rope_main_ = nullptr;
  const float* rope_compress_ = nullptr;
  std::vector<std::byte> staging_codes_, staging_scales_;
  bool synthetic_ = false;
  std::int64_t resident_experts_ = 0;
  std::uint32_t seed_ = 1;
  cudaStream_t stream_ = nullptr;
};

}  // namespace pivot::cuda
