// Everything that reads the attention input x: qr, raw kv rows, index head weights, and both compressors
// (specification 2.4 steps 1 and 5, 2.5, 2.6 steps 2-3).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/cpu/reference/cache_rows.h"
#include "ops/cpu/reference/compressor.h"
#include "ops/cpu/simd/linear.h"

namespace pivot::simd {
namespace {

using reference::RowPointers;

constexpr std::int64_t kKvGroup = 64;

void norm_row(const Kernels& kernels, const float* x, FloatSpan norm, float eps, bool round, float* y) {
  const auto count = static_cast<std::int64_t>(norm.size());
  const float mean = kernels.sum_squares(x, count, false) / static_cast<float>(count);
  kernels.scale_row(x, 1.0f / std::sqrt(mean + eps), norm.data(), count, round, y);
}

// One compressor of a step. k and s of the step's tokens lie in scratch memory; earlier ones come from the
// state ring.
class Compressor {
 public:
  Compressor(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const CompressorWeights& weights, const CompressorStateView& state)
      : context_(context),
        layer_(layer),
        batch_(batch),
        weights_(weights),
        state_(state),
        round_(rounds(knobs)) {
    const std::int64_t series = reference::compressor_series(weights.ratio);
    PIVOT_CHECK(state.width == series * weights.width && state.rows >= series * weights.ratio,
                "state [{}, {}], ratio {}, width {}", state.rows, state.width, weights.ratio, weights.width);
    k_ = context.scratch.take<float>(std::int64_t{batch.num_tokens} * state.width);
    s_ = context.scratch.take<float>(std::int64_t{batch.num_tokens} * state.width);
  }

  void add_products(LinearStep& step) {
    step.add(weights_.wkv, ActQuant::kBf16, k_, false);
    step.add(weights_.wgate, ActQuant::kBf16, s_, false);
  }

  // Emits the entries that this step completes, then advances the ring. emit(span, entry, row) receives a
  // finished row before the rounding of the cache it belongs to.
  template <class Emit>
  void advance(const Emit& emit) {
    context_.for_each(batch_.num_tokens, [&](std::int64_t t) {
      const float* ape = weights_.ape.data() + batch_.positions[t] % weights_.ratio * state_.width;
      context_.kernels.accumulate(s_ + t * state_.width, ape, state_.width);
    });
    struct Entry {
      const SequenceSpan* span;
      std::int64_t index;
    };
    std::vector<Entry> entries;
    for (std::int32_t s = 0; s < batch_.num_spans; ++s) {
      const SequenceSpan& span = batch_.spans[s];
      for (std::int64_t e = span.start_position / weights_.ratio;
           (e + 1) * weights_.ratio <= span.start_position + span.num_tokens; ++e)
        entries.push_back({&span, e});
    }
    const std::int64_t pairs = layer_.config->qk_rope_head_dim / 2;
    context_.pool.for_ranges(static_cast<std::int64_t>(entries.size()), 1,
                             [&](std::int64_t begin, std::int64_t end) {
                               std::vector<float> row(static_cast<std::size_t>(weights_.width)),
                                   cos(static_cast<std::size_t>(pairs)), sin(cos);
                               for (std::int64_t i = begin; i < end; ++i) {
                                 const Entry& entry = entries[static_cast<std::size_t>(i)];
                                 finish(*entry.span, entry.index, row.data(), cos.data(), sin.data());
                                 emit(*entry.span, entry.index, row.data());
                               }
                             });
    store();
  }

 private:
  // k and s of a position: in this step, or in the ring.
  reference::CompressorRow at(const SequenceSpan& span, std::int64_t position) const {
    if (position < span.start_position)
      return reference::compressor_row(state_, span.slot, static_cast<std::int32_t>(position));
    const std::int64_t t = span.first_token + position - span.start_position;
    return {k_ + t * state_.width, s_ + t * state_.width};
  }

  void finish(const SequenceSpan& span, std::int64_t entry, float* row, float* cos, float* sin) const {
    const Kernels& kernels = context_.kernels;
    const std::int64_t ratio = weights_.ratio, width = weights_.width;
    const float* k[128 + 4];
    const float* s[128 + 4];
    std::int64_t count = 0;
    const bool two = ratio == 4;
    const auto take = [&](std::int64_t position, std::int64_t offset) {
      const reference::CompressorRow from = at(span, position);
      k[count] = from.k + offset;
      s[count++] = from.s + offset;
    };
    // The previous block's A series, then the own block's last series.
    if (two && entry > 0)
      for (std::int64_t p = (entry - 1) * ratio; p < entry * ratio; ++p) take(p, 0);
    for (std::int64_t p = entry * ratio; p < (entry + 1) * ratio; ++p) take(p, two ? width : 0);
    kernels.softmax_pool(k, s, count, width, row);
    if (round_) kernels.round_bf16(row, width);
    norm_row(kernels, row, weights_.norm, static_cast<float>(layer_.config->rms_norm_eps), round_, row);
    const std::int64_t pairs = layer_.config->qk_rope_head_dim / 2;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(entry * ratio) * layer_.rope_frequencies[i];
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    }
    kernels.rotate(row + width - 2 * pairs, cos, sin, pairs, round_);
  }

  // The ring takes the last tokens of each span.
  void store() {
    for (std::int32_t i = 0; i < batch_.num_spans; ++i) {
      const SequenceSpan& span = batch_.spans[i];
      for (std::int32_t n = std::max(0, span.num_tokens - state_.rows); n < span.num_tokens; ++n) {
        const std::int64_t t = span.first_token + n;
        const reference::CompressorRow row =
            reference::compressor_row(state_, span.slot, span.start_position + n);
        std::copy_n(k_ + t * state_.width, state_.width, row.k);
        std::copy_n(s_ + t * state_.width, state_.width, row.s);
      }
    }
  }

  Context& context_;
  const LayerContext& layer_;
  const StepBatch& batch_;
  const CompressorWeights& weights_;
  const CompressorStateView& state_;
  bool round_;
  float* k_;
  float* s_;
};

void check_row_layout(const Knobs& knobs, const RowLayout& layout) {
  PIVOT_CHECK(rounds(knobs) || layout.format == RowFormat::kF32,
              "activations=f32 needs f32 rows, not format {}", static_cast<int>(layout.format));
}

}  // namespace

void latent(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
            const LatentParams& p) {
  const ModelConfig& config = *layer.config;
  const AttentionWeights& weights = *p.weights;
  const Kernels& kernels = context.kernels;
  const bool round = rounds(knobs);
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const std::int64_t tokens = batch.num_tokens, rank = config.q_lora_rank;
  const auto head_dim = static_cast<std::int32_t>(config.head_dim);
  const auto rope = static_cast<std::int32_t>(config.qk_rope_head_dim);
  const RopeTable& angles = context.rope(layer, batch);

  LinearStep step(context, floats(p.x), tokens, config.hidden_size);
  step.add(weights.wq_a, knobs.dense_act, floats(p.qr), round);
  step.add(weights.wkv, knobs.dense_act, floats(p.kv), round);
  std::vector<Compressor> compressors;
  compressors.reserve(2);
  if (layer.ratio != 0) {
    check_row_layout(knobs, p.cache.compressed.layout);
    compressors.emplace_back(context, layer, knobs, batch, *weights.compressor, p.cache.compressor);
  }
  if (layer.ratio == 4) {
    const IndexerWeights& indexer = *weights.indexer;
    compressors.emplace_back(context, layer, knobs, batch, indexer.compressor, p.cache.index_compressor);
    step.add(indexer.weights_proj, knobs.dense_act, p.index_weights, round);
  }
  for (Compressor& compressor : compressors) compressor.add_products(step);
  step.run();

  const std::int64_t groups = kv_scale_groups(kv_packed_layout(head_dim, rope));
  const float index_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.index_head_dim)) /
                                               std::sqrt(static_cast<double>(config.index_n_heads)));
  context.for_each(tokens, [&](std::int64_t t) {
    float* qr = floats(p.qr) + t * rank;
    norm_row(kernels, qr, weights.q_norm, eps, round, qr);
    float* kv = floats(p.kv) + t * head_dim;
    norm_row(kernels, kv, weights.kv_norm, eps, round, kv);
    kernels.rotate(kv + head_dim - rope, angles.cos(t), angles.sin(t), rope / 2, round);
    if (knobs.kv == KvPrecision::kFp8)
      kernels.quantize_e4m3(kv, head_dim - rope, kKvGroup,
                            p.kv_scales == nullptr ? nullptr : p.kv_scales + t * groups);
    if (layer.ratio == 4) {
      float* index = p.index_weights + t * config.index_n_heads;
      kernels.scale_row(index, index_scale, nullptr, config.index_n_heads, round, index);
    }
  });

  if (layer.ratio == 0) return;
  compressors[0].advance([&](const SequenceSpan& span, std::int64_t entry, const float* row) {
    const RowPointers out = reference::paged_row(p.cache.compressed, span.table, entry);
    reference::store_kv(p.cache.compressed.layout, rope, knobs.kv, row, out.data, out.scales);
  });
  if (layer.ratio != 4) return;
  compressors[1].advance([&](const SequenceSpan& span, std::int64_t entry, float* row) {
    const std::int64_t dim = weights.indexer->compressor.width;
    kernels.hadamard(row, dim);
    if (round) kernels.round_bf16(row, dim);
    const RowPointers out = reference::paged_row(p.cache.index_keys, span.table, entry);
    reference::store_index(p.cache.index_keys.layout, knobs.index_keys, row, out.data, out.scales);
  });
}

}  // namespace pivot::simd
