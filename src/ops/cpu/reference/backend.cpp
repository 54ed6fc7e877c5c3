#include "ops/cpu/reference/backend.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/threads.h"
#include "numeric/quantize.h"
#include "ops/cpu/reference/cache_rows.h"
#include "ops/cpu/reference/compressor.h"
#include "ops/cpu/reference/expert.h"
#include "ops/cpu/reference/hyper_connection.h"
#include "ops/cpu/reference/indexer.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/norm.h"
#include "ops/cpu/reference/rope.h"
#include "ops/cpu/reference/rounding.h"
#include "ops/cpu/reference/router.h"
#include "ops/cpu/reference/sparse_attention.h"
#include "ops/cpu/reference/support.h"

namespace pivot {
namespace {

using namespace reference;

constexpr std::align_val_t kAlignment{64};

const float* floats(const Act* x) { return static_cast<const float*>(x); }
float* floats(Act* x) { return static_cast<float*>(x); }

std::int64_t memory_bytes(int name) {
  return static_cast<std::int64_t>(sysconf(name)) * static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
}

// Unrounded activations can only be cached unrounded; anything else would make a chunked run differ from a
// whole one.
void check_row_layout(const Knobs& knobs, const RowLayout& layout) {
  PIVOT_CHECK(knobs.activations == Activations::kBf16 || layout.format == RowFormat::kF32,
              "activations=f32 needs f32 rows, the cache has format {}", static_cast<int>(layout.format));
}

// The entries of one compressor that this step completes. `emit(span, entry, row)` receives the finished row,
// before the rounding of the cache it belongs to.
template <class Emit>
void advance_compressor(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                        const CompressorWeights& weights, const CompressorStateView& state,
                        const LinearInput& x, ThreadPool& pool, const Emit& emit) {
  const ModelConfig& config = *layer.config;
  const Rounding round(knobs.activations);
  const std::vector<float> k = linear(weights.wkv, x, pool);
  const std::vector<float> score = linear(weights.wgate, x, pool);
  pool.for_ranges(batch.num_spans, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(weights.width));
    for (std::int64_t s = begin; s < end; ++s) {
      const SequenceSpan& span = batch.spans[s];
      for (std::int32_t i = 0; i < span.num_tokens; ++i) {
        const std::int32_t position = span.start_position + i;
        const std::int64_t token = span.first_token + i;
        compressor_store(weights, state, span.slot, position, k.data() + token * state.width,
                         score.data() + token * state.width);
        if ((position + 1) % weights.ratio != 0) continue;
        const std::int64_t entry = position / weights.ratio;
        compressor_pool(weights, state, span.slot, entry, row.data());
        compressor_finish(weights, layer.rope_frequencies, config.qk_rope_head_dim, entry,
                          static_cast<float>(config.rms_norm_eps), round, row.data());
        emit(span, entry, row.data());
      }
    }
  });
}

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(int num_threads) : pool_(num_threads) {}

  std::string_view name() const override { return "cpu-reference"; }
  DeviceInfo device() const override {
    return {fmt::format("cpu (reference, {} thread{})", pool_.size(), pool_.size() == 1 ? "" : "s"),
            memory_bytes(_SC_PHYS_PAGES)};
  }
  int activation_bytes() const override { return 4; }
  Result<> supports(const ModelWeights& weights, const Knobs& knobs) const override {
    return check_support(weights, knobs);
  }

  Result<std::byte*> allocate(std::int64_t bytes, std::string_view purpose) override;
  void release(std::byte* memory) override { ::operator delete(memory, kAlignment); }
  void fill(std::byte* memory, int value, std::int64_t bytes) override {
    std::fill_n(memory, bytes, static_cast<std::byte>(value));
  }
  // No bytes may come from and go to no address, which memcpy does not allow.
  void upload(void* device, const void* host, std::int64_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(host), bytes, static_cast<std::byte*>(device));
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(device), bytes, static_cast<std::byte*>(host));
  }
  Result<> synchronize() override { return {}; }
  Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> weights) override {
    return weights;
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override;
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const HcSeamParams& p) override;
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override;
  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override;
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override;
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override;
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override;
  void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const AttentionOutParams& p) override;
  void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const RouteParams& p) override;
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override;
  void logits(const Knobs& knobs, const LogitsParams& p) override;

 private:
  // Calls work(t) for every token, split over the threads.
  template <class Work>
  void for_tokens(std::int64_t count, const Work& work) {
    pool_.for_ranges(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) work(t);
    });
  }
  void attend(const LayerContext& layer, const Knobs& knobs, const SequenceSpan& span, std::int32_t index,
              const AttentionParams& p, bool split_heads);

  ThreadPool pool_;
};

Result<std::byte*> ReferenceBackend::allocate(std::int64_t bytes, std::string_view purpose) {
  PIVOT_CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
  void* memory =
      ::operator new(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), kAlignment, std::nothrow);
  if (memory == nullptr)
    return fail(ErrorCode::kOutOfMemory,
                "{} needs {} bytes, {} are free; reduce the context or the number of sequences", purpose,
                bytes, memory_bytes(_SC_AVPHYS_PAGES));
  return static_cast<std::byte*>(memory);
}

void ReferenceBackend::embed(const StepBatch& batch, const EmbedParams& p) {
  const std::int64_t width = p.embed.cols;
  for_tokens(batch.num_tokens, [&](std::int64_t t) {
    float* h = floats(p.h) + t * p.num_streams * width;
    dequantize_row(p.embed, batch.token_ids[t], h);
    for (std::int32_t s = 1; s < p.num_streams; ++s) std::copy_n(h, width, h + s * width);
  });
}

void ReferenceBackend::hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                               const HcSeamParams& p) {
  const ModelConfig& config = *layer.config;
  const Rounding round(knobs.activations);
  const int streams = static_cast<int>(config.hc_mult);
  const std::int64_t width = config.hidden_size;
  float* h = floats(p.h);
  if (p.sublayer_out != nullptr)
    for_tokens(batch.num_tokens, [&](std::int64_t t) {
      hc_post(h + t * streams * width, floats(p.sublayer_out) + t * width, p.post + t * streams,
              p.comb + t * streams * streams, streams, width, round);
    });
  const float norm_eps = static_cast<float>(config.rms_norm_eps);
  const std::vector<float> mixes =
      hc_mixes(h, batch.num_tokens, streams * width, p.hc->fn, norm_eps, knobs.mhc, pool_);
  const std::int64_t rows = std::int64_t{2 + streams} * streams;
  for_tokens(batch.num_tokens, [&](std::int64_t t) {
    std::vector<float> pre(static_cast<std::size_t>(streams));
    hc_coefficients(mixes.data() + t * rows, p.hc->scale, p.hc->base, streams,
                    static_cast<int>(config.hc_sinkhorn_iters), static_cast<float>(config.hc_eps), pre.data(),
                    p.post + t * streams, p.comb + t * streams * streams);
    float* x = floats(p.x) + t * width;
    hc_pre(h + t * streams * width, pre.data(), streams, width, round, x);
    rms_norm(x, p.norm.data(), width, norm_eps, round, x);
  });
}

void ReferenceBackend::hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
                               const HcHeadParams& p) {
  const Rounding round(knobs.activations);
  const int streams = static_cast<int>(config.hc_mult);
  const std::int64_t width = config.hidden_size;
  const std::int64_t cols = streams * width;
  float* h = floats(p.h);
  if (p.sublayer_out != nullptr)
    for_tokens(batch.num_tokens, [&](std::int64_t t) {
      hc_post(h + t * cols, floats(p.sublayer_out) + t * width, p.post + t * streams,
              p.comb + t * streams * streams, streams, width, round);
    });
  std::vector<float> chosen(static_cast<std::size_t>(p.num_rows * cols));
  for (std::int64_t i = 0; i < p.num_rows; ++i)
    std::copy_n(h + p.rows[i] * cols, cols, chosen.data() + i * cols);
  const float norm_eps = static_cast<float>(config.rms_norm_eps);
  const std::vector<float> mixes =
      hc_mixes(chosen.data(), p.num_rows, cols, p.hc->fn, norm_eps, knobs.mhc, pool_);
  for_tokens(p.num_rows, [&](std::int64_t i) {
    std::vector<float> pre(static_cast<std::size_t>(streams));
    hc_pre_weights(mixes.data() + i * streams, p.hc->scale[0], p.hc->base.data(), streams,
                   static_cast<float>(config.hc_eps), pre.data());
    float* x = floats(p.x) + i * width;
    hc_pre(chosen.data() + i * cols, pre.data(), streams, width, round, x);
    rms_norm(x, p.norm.data(), width, norm_eps, round, x);
  });
}

void ReferenceBackend::latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                              const LatentParams& p) {
  const ModelConfig& config = *layer.config;
  const AttentionWeights& weights = *p.weights;
  const Rounding round(knobs.activations);
  const float eps = static_cast<float>(config.rms_norm_eps);
  const std::int64_t tokens = batch.num_tokens;
  const std::int64_t width = config.hidden_size;
  const auto head_dim = static_cast<std::int32_t>(config.head_dim);
  const auto rope = static_cast<std::int32_t>(config.qk_rope_head_dim);
  const LinearInput x = plain_input(floats(p.x), tokens, width);

  const std::vector<float> a = linear(
      weights.wq_a, linear_input(weights.wq_a, knobs.dense_act, floats(p.x), tokens, width), round, pool_);
  const std::vector<float> latent_rows = linear(
      weights.wkv, linear_input(weights.wkv, knobs.dense_act, floats(p.x), tokens, width), round, pool_);
  const std::int64_t groups = kv_scale_groups(kv_packed_layout(head_dim, rope));
  for_tokens(tokens, [&](std::int64_t t) {
    rms_norm(a.data() + t * config.q_lora_rank, weights.q_norm.data(), config.q_lora_rank, eps, round,
             floats(p.qr) + t * config.q_lora_rank);
    float* kv = floats(p.kv) + t * head_dim;
    rms_norm(latent_rows.data() + t * head_dim, weights.kv_norm.data(), head_dim, eps, round, kv);
    rotate(kv + head_dim - rope, RopeAngles(layer.rope_frequencies, rope / 2, batch.positions[t]), false,
           round);
    round_kv(kv, head_dim, rope, knobs.kv, p.kv_scales == nullptr ? nullptr : p.kv_scales + t * groups);
  });

  if (layer.ratio == 0) return;
  check_row_layout(knobs, p.cache.compressed.layout);
  advance_compressor(layer, knobs, batch, *weights.compressor, p.cache.compressor, x, pool_,
                     [&](const SequenceSpan& span, std::int64_t entry, float* row) {
                       const RowPointers out = paged_row(p.cache.compressed, span.table, entry);
                       store_kv(p.cache.compressed.layout, rope, knobs.kv, row, out.data, out.scales);
                     });
  if (layer.ratio != 4) return;

  const IndexerWeights& indexer = *weights.indexer;
  const RowLayout& key_layout = p.cache.index_keys.layout;
  advance_compressor(layer, knobs, batch, indexer.compressor, p.cache.index_compressor, x, pool_,
                     [&](const SequenceSpan& span, std::int64_t entry, float* row) {
                       const std::int64_t dim = indexer.compressor.width;
                       hadamard({row, static_cast<std::size_t>(dim)});
                       round.apply(row, dim);
                       const RowPointers out = paged_row(p.cache.index_keys, span.table, entry);
                       store_index(key_layout, knobs.index_keys, row, out.data, out.scales);
                     });
  const std::vector<float> head_weights =
      linear(indexer.weights_proj,
             linear_input(indexer.weights_proj, knobs.dense_act, floats(p.x), tokens, width), round, pool_);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.index_head_dim)) /
                                         std::sqrt(static_cast<double>(config.index_n_heads)));
  for (std::size_t i = 0; i < head_weights.size(); ++i) p.index_weights[i] = round(head_weights[i] * scale);
}

void ReferenceBackend::query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                             const QueryParams& p) {
  const ModelConfig& config = *layer.config;
  const AttentionWeights& weights = *p.weights;
  const Rounding round(knobs.activations);
  const std::int64_t tokens = batch.num_tokens;
  const std::int64_t head_dim = config.head_dim;
  const std::int64_t rope = config.qk_rope_head_dim;
  const std::int64_t rank = config.q_lora_rank;

  const std::vector<float> q = linear(
      weights.wq_b, linear_input(weights.wq_b, knobs.dense_act, floats(p.qr), tokens, rank), round, pool_);
  std::copy(q.begin(), q.end(), floats(p.q));
  const bool indexed = layer.ratio == 4 && p.index_q != nullptr;
  const std::int64_t index_dim = config.index_head_dim;
  if (indexed) {
    const Matrix& wq_b = weights.indexer->wq_b;
    const std::vector<float> index_q =
        linear(wq_b, linear_input(wq_b, knobs.dense_act, floats(p.qr), tokens, rank), round, pool_);
    std::copy(index_q.begin(), index_q.end(), floats(p.index_q));
  }
  for_tokens(tokens, [&](std::int64_t t) {
    const RopeAngles angles(layer.rope_frequencies, rope / 2, batch.positions[t]);
    for (std::int64_t h = 0; h < config.num_attention_heads; ++h) {
      float* head = floats(p.q) + (t * config.num_attention_heads + h) * head_dim;
      head_rms(head, head_dim, static_cast<float>(config.rms_norm_eps), round);
      rotate(head + head_dim - rope, angles, false, round);
    }
    for (std::int64_t h = 0; indexed && h < config.index_n_heads; ++h) {
      float* head = floats(p.index_q) + (t * config.index_n_heads + h) * index_dim;
      rotate(head + index_dim - rope, angles, false, round);
      hadamard({head, static_cast<std::size_t>(index_dim)});
      round.apply(head, index_dim);
      round_index(head, static_cast<std::int32_t>(index_dim), knobs.index_keys);
    }
  });
}

void ReferenceBackend::index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                                    const IndexSelectParams& p) {
  const ModelConfig& config = *layer.config;
  PIVOT_CHECK(layer.ratio == 4 && p.topk > 0, "ratio {}, topk {}", layer.ratio, p.topk);
  for (std::int32_t s = 0; s < batch.num_spans; ++s) {
    const SequenceSpan& span = batch.spans[s];
    const std::int64_t entries = (span.start_position + span.num_tokens) / layer.ratio;
    IndexKeys keys(entries > p.topk ? entries : 0, config.index_head_dim);
    std::vector<float> key(static_cast<std::size_t>(config.index_head_dim));
    for (std::int64_t j = 0; j < keys.count; ++j) {
      read_paged_row(p.index_keys, span.table, j, key.data());
      keys.set(j, key.data());
    }
    for_tokens(span.num_tokens, [&](std::int64_t i) {
      const std::int64_t token = span.first_token + i;
      std::int32_t* selected = p.selected + token * p.topk;
      const auto visible = static_cast<std::int32_t>((span.start_position + i + 1) / layer.ratio);
      if (visible <= p.topk) {  // all of them, without scoring (specification 2.6)
        for (std::int32_t j = 0; j < p.topk; ++j) selected[j] = j < visible ? j : -1;
        p.count[token] = visible;
        return;
      }
      std::vector<float> scores(static_cast<std::size_t>(visible));
      index_scores(floats(p.index_q) + token * config.index_n_heads * config.index_head_dim,
                   p.index_weights + token * config.index_n_heads, config.index_n_heads, keys, visible,
                   knobs.index_score, scores.data());
      p.count[token] = select_topk(scores, p.topk, selected);
    });
  }
}

// One query token: raw rows by ascending position, then compressed entries ascending. The order, and with it
// every bit of the result, does not depend on which of the raw rows belong to this step.
void ReferenceBackend::attend(const LayerContext& layer, const Knobs& knobs, const SequenceSpan& span,
                              std::int32_t index, const AttentionParams& p, bool split_heads) {
  const ModelConfig& config = *layer.config;
  const Rounding round(knobs.activations);
  const std::int64_t head_dim = config.head_dim;
  const std::int64_t heads = config.num_attention_heads;
  const std::int64_t token = span.first_token + index;
  const std::int32_t position = span.start_position + index;
  const std::int32_t first_raw = std::max(0, position - static_cast<std::int32_t>(config.sliding_window) + 1);
  const std::int64_t raw = position - first_raw + 1;
  const std::int32_t* selected = p.selected == nullptr ? nullptr : p.selected + token * p.topk;
  const std::int64_t visible = layer.ratio == 0 ? 0 : (position + 1) / layer.ratio;
  const std::int64_t compressed = layer.ratio == 0 || selected == nullptr ? visible : p.selected_count[token];

  AttentionRows rows(raw + compressed, head_dim);
  for (std::int32_t at = first_raw; at <= position; ++at) {
    float* row = rows.row(at - first_raw);
    if (at < span.start_position)
      read_ring_row(p.cache.window, span.slot, at, row);
    else
      std::copy_n(floats(p.kv) + (span.first_token + at - span.start_position) * head_dim, head_dim, row);
  }
  for (std::int64_t j = 0; j < compressed; ++j) {
    const std::int64_t entry = selected == nullptr ? j : selected[j];
    PIVOT_CHECK(entry >= 0 && entry < visible, "entry {} of {} at position {}", entry, visible, position);
    read_paged_row(p.cache.compressed, span.table, entry, rows.row(raw + j));
  }
  rows.build_panels();

  const RopeAngles angles(layer.rope_frequencies, config.qk_rope_head_dim / 2, position);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const auto run_heads = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      float* o = floats(p.o) + (token * heads + h) * head_dim;
      sparse_attention(floats(p.q) + (token * heads + h) * head_dim, rows,
                       p.weights->attn_sink[static_cast<std::size_t>(h)], scale, round, o);
      rotate(o + config.nope_head_dim(), angles, true, round);
    }
  };
  if (split_heads)
    pool_.for_ranges(heads, 1, run_heads);
  else
    run_heads(0, heads);
}

void ReferenceBackend::attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                                 const AttentionParams& p) {
  const auto head_dim = static_cast<std::int32_t>(layer.config->head_dim);
  const RingView& ring = p.cache.window;
  check_row_layout(knobs, ring.layout);
  PIVOT_CHECK(ring.rows >= layer.config->sliding_window, "ring of {} rows, window {}", ring.rows,
              layer.config->sliding_window);
  for (std::int32_t s = 0; s < batch.num_spans; ++s) {
    const SequenceSpan& span = batch.spans[s];
    if (span.num_tokens < pool_.size()) {
      for (std::int32_t i = 0; i < span.num_tokens; ++i) attend(layer, knobs, span, i, p, true);
    } else {
      for_tokens(span.num_tokens,
                 [&](std::int64_t i) { attend(layer, knobs, span, static_cast<std::int32_t>(i), p, false); });
    }
    // Commit the rows that the ring still holds after this step.
    const std::int32_t groups = kv_scale_groups(ring.layout);
    for (std::int32_t i = std::max(0, span.num_tokens - ring.rows); i < span.num_tokens; ++i) {
      const std::int64_t token = span.first_token + i;
      const RowPointers out = ring_row(ring, span.slot, span.start_position + i);
      const float* row = floats(p.kv) + token * head_dim;
      if (ring.layout.format == RowFormat::kKvPacked && p.kv_scales != nullptr)
        pack_kv_row(ring.layout, row, p.kv_scales + token * groups, out.data, out.scales);
      else
        pack_row(ring.layout, row, out.data, out.scales);
    }
  }
}

void ReferenceBackend::attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                                     const AttentionOutParams& p) {
  const ModelConfig& config = *layer.config;
  const Rounding round(knobs.activations);
  const Matrix& wo_a = p.weights->wo_a;
  const std::int64_t row_floats = config.num_attention_heads * config.head_dim;
  const std::int64_t z_cols = config.o_groups * config.o_lora_rank;
  const bool quantize = wo_a.format == MatrixFormat::kFP8 && knobs.wo_a_act == ActQuant::kFp8;
  std::vector<float> z(static_cast<std::size_t>(batch.num_tokens * z_cols));
  for (std::int64_t g = 0; g < config.o_groups; ++g) {
    const float* o = floats(p.o) + g * wo_a.cols;
    const LinearInput input = quantize ? fp8_input(o, batch.num_tokens, wo_a.cols, row_floats)
                                       : plain_input(o, batch.num_tokens, wo_a.cols, row_floats);
    linear(wo_a, g * config.o_lora_rank, (g + 1) * config.o_lora_rank, input,
           z.data() + g * config.o_lora_rank, z_cols, pool_);
  }
  round.apply(z.data(), static_cast<std::int64_t>(z.size()));
  const Matrix& wo_b = p.weights->wo_b;
  const std::vector<float> out =
      linear(wo_b, linear_input(wo_b, knobs.dense_act, z.data(), batch.num_tokens, z_cols), round, pool_);
  std::copy(out.begin(), out.end(), floats(p.out));
}

void ReferenceBackend::route(const LayerContext& layer, const Knobs&, const StepBatch& batch,
                             const RouteParams& p) {
  const ModelConfig& config = *layer.config;
  const MoeWeights& weights = *p.weights;
  const std::int64_t experts = config.n_routed_experts;
  const std::int64_t chosen = config.num_experts_per_tok;
  const RouterRule rule{static_cast<int>(chosen), config.norm_topk_prob,
                        static_cast<float>(config.routed_scaling_factor)};
  const std::vector<float> z =
      linear(weights.gate, plain_input(floats(p.x), batch.num_tokens, config.hidden_size), pool_);
  for_tokens(batch.num_tokens, [&](std::int64_t t) {
    std::span<const std::int32_t> table;
    if (!weights.tid2eid.empty())
      table = weights.tid2eid.subspan(static_cast<std::size_t>(batch.token_ids[t] * chosen),
                                      static_cast<std::size_t>(chosen));
    const float margin =
        route_token({z.data() + t * experts, static_cast<std::size_t>(experts)}, weights.bias, table, rule,
                    p.expert_ids + t * chosen, p.expert_weights + t * chosen);
    if (p.margin != nullptr) p.margin[t] = margin;
  });
}

void ReferenceBackend::moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                           const MoeParams& p) {
  const ModelConfig& config = *layer.config;
  const MoeWeights& weights = *p.weights;
  const Rounding round(knobs.activations);
  const std::int64_t width = config.hidden_size;
  const std::int64_t chosen = config.num_experts_per_tok;
  const float limit = static_cast<float>(config.swiglu_limit);
  const float* x = floats(p.x);
  std::vector<std::vector<std::int64_t>> slots(
      weights.experts.size());  // t*K + i of every token that chose expert e
  for (std::int64_t at = 0; at < batch.num_tokens * chosen; ++at)
    slots[static_cast<std::size_t>(p.expert_ids[at])].push_back(at);

  // Ascending expert id, so that each token's sum has the same order in every batch.
  std::vector<float> sum(static_cast<std::size_t>(batch.num_tokens * width), 0.0f);
  for (std::size_t e = 0; e < weights.experts.size(); ++e) {
    const auto count = static_cast<std::int64_t>(slots[e].size());
    if (count == 0) continue;
    std::vector<float> inputs(static_cast<std::size_t>(count * width)), route_weights;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t slot = slots[e][static_cast<std::size_t>(i)];
      std::copy_n(x + slot / chosen * width, width, inputs.data() + i * width);
      route_weights.push_back(p.expert_weights[slot]);
    }
    const std::vector<float> y = expert_forward(weights.experts[e], knobs.expert_act, inputs.data(), count,
                                                route_weights.data(), limit, round, pool_);
    for (std::int64_t i = 0; i < count; ++i) {
      float* out = sum.data() + slots[e][static_cast<std::size_t>(i)] / chosen * width;
      for (std::int64_t c = 0; c < width; ++c) out[c] += y[static_cast<std::size_t>(i * width + c)];
    }
  }
  const std::vector<float> shared =
      expert_forward(weights.shared, knobs.dense_act, x, batch.num_tokens, nullptr, limit, round, pool_);
  float* out = floats(p.out);
  for (std::size_t i = 0; i < sum.size(); ++i) out[i] = round(sum[i] + shared[i]);
}

void ReferenceBackend::logits(const Knobs&, const LogitsParams& p) {
  linear(p.head, 0, p.head.rows, plain_input(floats(p.x), p.num_rows, p.head.cols), p.logits, p.head.rows,
         pool_);
}

}  // namespace

std::unique_ptr<Backend> make_reference_backend(int num_threads) {
  return std::make_unique<ReferenceBackend>(num_threads);
}

}  // namespace pivot
