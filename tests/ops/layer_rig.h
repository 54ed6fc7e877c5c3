// One layer with its caches around a CPU back-end: feeds attention inputs chunk by chunk and keeps what every
// op wrote.
//
// Works for any back-end whose memory is the host's and whose activations are fp32, so that parity tests can
// run the same steps on two of them.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_weights.h"
#include "ops/ops.h"

namespace pivot::test {

struct RigOptions {
  Knobs knobs;
  int sequences = 1;
  int max_positions = 1024;
  int page_rows = 64;
  int extra_ring_rows = 0;      // beyond the window
  bool reversed_pages = false;  // page ids handed out from the last one down
};

// `tokens` further positions of one sequence.
struct Chunk {
  int sequence = 0;
  int tokens = 0;
};

struct AttentionStep {
  std::vector<float> qr, kv, q, index_q, index_weights, o, out;
  std::vector<std::uint8_t> kv_scales;
  std::vector<std::int32_t> selected, count;  // ratio 4 with a selection; topk values a token
  std::int32_t topk = 0;
};

class LayerRig {
 public:
  LayerRig(Backend& backend, const ModelConfig& config, const LayerWeights& weights, int layer,
           RigOptions options);

  // x: [sum of tokens, d], chunk after chunk. Positions go on where each sequence stands.
  AttentionStep attention(const std::vector<Chunk>& chunks, const std::vector<float>& x);

  std::vector<float> window_row(int sequence, int position) const;
  std::vector<float> compressed_row(int sequence, int entry) const;
  std::vector<float> index_row(int sequence, int entry) const;
  // k and s of a position in the main or index compressor's state.
  std::vector<float> state_row(bool index, int sequence, int position) const;
  int position(int sequence) const { return positions_[static_cast<std::size_t>(sequence)]; }
  // Every cached byte of a sequence in logical order (rows by position and entry), whatever the pages.
  std::vector<std::uint8_t> state_bytes(int sequence) const;
  LayerCacheView view() const;

 private:
  void append_paged(const PagedView& pages, int sequence, int entries, std::vector<std::uint8_t>& out) const;

  Backend& backend_;
  ModelConfig config_;
  const LayerWeights& weights_;
  int ratio_;
  LayerContext context_;
  RigOptions options_;
  std::vector<int> positions_;
  std::vector<float> frequencies_;
  std::vector<std::byte> ring_, compressed_, index_keys_;
  std::vector<float> compressor_, index_compressor_;
  std::vector<std::int32_t> page_table_;
  int pages_per_sequence_ = 0;
};

// Row formats that the knobs ask for.
RowLayout kv_layout(const ModelConfig& config, const Knobs& knobs);
RowLayout index_layout(const ModelConfig& config, const Knobs& knobs);

}  // namespace pivot::test
