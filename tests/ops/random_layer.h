// One layer of seeded random weights with small sizes, for op tests that need no checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "checkpoint/model_weights.h"

namespace pivot::test {

// Owns matrices in checkpoint formats. Values are about normal with standard deviation cols^-0.5.
class RandomMatrices {
 public:
  explicit RandomMatrices(std::uint64_t seed) : random_(seed) {}
  Matrix bf16(std::int64_t rows, std::int64_t cols);
  Matrix fp8(std::int64_t rows, std::int64_t cols, ScaleFormat scales = ScaleFormat::kE8M0);
  Matrix fp4(std::int64_t rows, std::int64_t cols);
  Matrix nvfp4(std::int64_t rows, std::int64_t cols, float global_scale = 0.25f, float input_scale = 0.01f);
  FloatSpan vector(std::int64_t count, float mean, float deviation);
  std::vector<float> activations(std::int64_t count);  // BF16-representable, standard deviation 1
  std::mt19937_64& random() { return random_; }

 private:
  std::byte* bytes(std::int64_t count);

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> storage_;
  std::vector<std::unique_ptr<std::vector<float>>> vectors_;
};

struct RandomLayerOptions {
  int ratio = 4;
  bool hash_routed = false;
  std::int64_t hidden_size = 96;  // not a multiple of the FP8 block
  std::int64_t num_attention_heads = 4;
  std::int64_t head_dim = 128;
  std::int64_t qk_rope_head_dim = 64;
  std::int64_t q_lora_rank = 64;
  std::int64_t o_groups = 2;
  std::int64_t o_lora_rank = 32;
  std::int64_t sliding_window = 128;
  std::int64_t index_n_heads = 3;
  std::int64_t index_head_dim = 64;
  std::int64_t index_topk = 8;
  std::uint64_t seed = 1;
};

struct RandomLayer {
  ModelConfig config;  // one layer
  LayerWeights weights;
  RandomMatrices storage;
};

std::unique_ptr<RandomLayer> make_random_layer(const RandomLayerOptions& options = {});

}  // namespace pivot::test
