// Inputs of the op parity grid: a one-layer model with random weights in any format, ragged steps, and caches
// filled as earlier steps would have left them. Everything lives on the host; parity_ops.h runs it on a
// back-end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_weights.h"
#include "numeric/row_layout.h"
#include "ops/ops.h"

namespace pivot::test {

using Random = std::mt19937;

// Nearly normal values (sums of uniform ones); `bf16` rounds them.
std::vector<float> normals(Random& random, std::int64_t count, float deviation = 1.0f, bool bf16 = true);

struct Formats {
  MatrixFormat dense = MatrixFormat::kFP8;
  ScaleFormat dense_scale = ScaleFormat::kE8M0;
  MatrixFormat experts = MatrixFormat::kFP4;
  std::string name = "native";
};
std::vector<Formats> all_formats();

struct ModelOptions {
  int ratio = 0;
  bool hash_routed = false;
  std::int64_t index_topk = 64;
  std::int64_t hidden_size = 256;
  Formats formats;
  std::uint32_t seed = 1;
};

ModelConfig model_config(const ModelOptions& options);
// One layer of the embedded model's shapes (heads of 512, index heads of 128).
std::shared_ptr<const ModelWeights> random_model(const ModelOptions& options);

// A matrix of random codes whose product with unit inputs has unit size; `storage` keeps its bytes.
Matrix random_matrix(Random& random, MatrixFormat format, ScaleFormat scale_format, std::int64_t rows,
                     std::int64_t cols, std::vector<std::shared_ptr<std::vector<std::byte>>>& storage);

// One sequence's share of a step.
struct Share {
  std::int32_t tokens = 0;
  std::int32_t start = 0;
};

// A step, and the caches before it. The page tables are shuffled, the last page is left unused.
struct StepCase {
  std::vector<SequenceSpan> spans;
  std::vector<std::int32_t> positions, span_of, token_ids;

  RowLayout kv, index_key;
  std::int32_t ring_rows = 128, page_rows = 64, table_stride = 0, state_rows = 8, state_width = 0,
               index_width = 0;
  std::int64_t slot_bytes = 0, page_bytes = 0, index_page_bytes = 0;
  std::vector<std::int32_t> page_table;
  std::vector<std::byte> rings, pages, index_pages;
  std::vector<float> states, index_states;

  std::int32_t num_tokens() const { return static_cast<std::int32_t>(positions.size()); }
  std::string name() const;
};
StepCase make_step(const ModelConfig& config, const Knobs& knobs, std::span<const Share> shares,
                   std::uint32_t seed = 7);

// The row formats that these knobs ask for.
RowLayout kv_layout(const ModelConfig& config, const Knobs& knobs);
RowLayout index_layout(const ModelConfig& config, const Knobs& knobs);

}  // namespace pivot::test
