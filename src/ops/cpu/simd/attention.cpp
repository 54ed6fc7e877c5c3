// Sparse attention with a sink over raw rows and compressed entries, and the grouped output projection
// (specification 2.4).
//
// A query's rows are taken in one fixed order, raw by position and then entries by index, so that its sums do
// not depend on which of them belong to the step. Rows of the step are read where they lie; ring rows are
// widened once per step, compressed rows once per step where all are visible and once per query where they
// were selected.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/cpu/reference/cache_rows.h"
#include "ops/cpu/simd/linear.h"

namespace pivot::simd {
namespace {

using reference::RowPointers;

constexpr std::int64_t kHeadGroup = 4;       // heads the kernels take at a time
constexpr std::int64_t kTileRows = 1024;     // rows widened at a time: 2 MiB at 512 dims
constexpr std::int64_t kSharedRows = 16384;  // most compressed rows widened for a whole step: 32 MiB
constexpr std::int64_t kOutputTokens = 512;  // attention_out works in blocks: its input is H*D wide

struct Sequence {
  const SequenceSpan* span = nullptr;
  std::int32_t first_ring = 0;       // position of ring_rows[0]
  float* ring_rows = nullptr;        // widened rows [first_ring, start_position)
  float* compressed_rows = nullptr;  // widened entries [0, entries), or null: widen per query
};

class Attention {
 public:
  Attention(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
            const AttentionParams& p)
      : context_(context),
        kernels_(context.kernels),
        config_(*layer.config),
        ratio_(layer.ratio),
        batch_(batch),
        p_(p),
        round_(rounds(knobs)),
        heads_(config_.num_attention_heads),
        dim_(config_.head_dim),
        softmax_scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim_)))),
        angles_(context.rope(layer, batch)) {}

  void run() {
    widen_rows();
    // One unit is a query and a group of heads while there are few queries, else a query.
    const std::int64_t groups =
        batch_.num_tokens < 2 * context_.pool.size() ? (heads_ + kHeadGroup - 1) / kHeadGroup : 1;
    const std::int64_t group_heads = groups == 1 ? heads_ : kHeadGroup;
    context_.for_blocks(batch_.num_tokens * groups, groups == 1 ? 4 : 1,
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t unit = begin; unit < end; ++unit) {
                            const std::int64_t first = unit % groups * group_heads;
                            attend(unit / groups, first, std::min(group_heads, heads_ - first));
                          }
                        });
  }

 private:
  // The rows from before the step, of all sequences in one parallel region: a step of many streams has few
  // rows of each.
  void widen_rows() {
    std::vector<std::int64_t> first_row = {0};  // of each sequence among all rows
    for (std::int32_t s = 0; s < batch_.num_spans; ++s) {
      const SequenceSpan& span = batch_.spans[s];
      Sequence sequence;
      sequence.span = &span;
      const auto window = static_cast<std::int32_t>(config_.sliding_window);
      sequence.first_ring = std::max(0, span.start_position - window + 1);
      const std::int64_t ring = span.start_position - sequence.first_ring;
      sequence.ring_rows = context_.scratch.take<float>(ring * dim_);
      const std::int64_t entries = ratio_ == 0 ? 0 : (span.start_position + span.num_tokens) / ratio_;
      const bool shared = entries > 0 && p_.selected == nullptr && entries <= kSharedRows;
      if (shared) sequence.compressed_rows = context_.scratch.take<float>(entries * dim_);
      first_row.push_back(first_row.back() + ring + (shared ? entries : 0));
      sequences_.push_back(sequence);
    }
    context_.pool.for_ranges(first_row.back(), 1, [&](std::int64_t begin, std::int64_t end) {
      auto s = static_cast<std::size_t>(std::upper_bound(first_row.begin(), first_row.end(), begin) -
                                        first_row.begin() - 1);
      for (std::int64_t row = begin; row < end; ++row) {
        while (row >= first_row[s + 1]) ++s;
        widen_row(sequences_[s], row - first_row[s]);
      }
    });
  }

  // Ring rows first, then entries.
  void widen_row(const Sequence& sequence, std::int64_t i) const {
    const SequenceSpan& span = *sequence.span;
    const std::int64_t ring = span.start_position - sequence.first_ring;
    if (i >= ring) {
      widen_entry(span, i - ring, sequence.compressed_rows + (i - ring) * dim_);
      return;
    }
    const RowPointers row =
        reference::ring_row(p_.cache.window, span.slot, sequence.first_ring + static_cast<std::int32_t>(i));
    kernels_.unpack_row(p_.cache.window.layout, row.data, row.scales, sequence.ring_rows + i * dim_);
  }

  void widen_entry(const SequenceSpan& span, std::int64_t entry, float* row) const {
    const RowPointers from = reference::paged_row(p_.cache.compressed, span.table, entry);
    kernels_.unpack_row(p_.cache.compressed.layout, from.data, from.scales, row);
  }

  // Heads [first, first+count) of one query.
  void attend(std::int64_t token, std::int64_t first, std::int64_t count) const {
    static thread_local std::vector<float> widened, scores;
    static thread_local std::vector<const float*> rows;
    const Sequence& sequence = sequences_[static_cast<std::size_t>(batch_.span_of[token])];
    const SequenceSpan& span = *sequence.span;
    const std::int32_t position = batch_.positions[token];
    const std::int32_t first_raw =
        std::max(0, position - static_cast<std::int32_t>(config_.sliding_window) + 1);
    const std::int64_t raw = position - first_raw + 1;
    const std::int64_t visible = ratio_ == 0 ? 0 : (position + 1) / ratio_;
    const std::int32_t* selected = p_.selected == nullptr ? nullptr : p_.selected + token * p_.topk;
    const std::int64_t entries = ratio_ == 0 ? 0 : selected == nullptr ? visible : p_.selected_count[token];
    const std::int64_t total = raw + entries;

    const auto row_at = [&](std::int64_t i, float* space) -> const float* {
      if (i < raw) {
        const std::int32_t at = first_raw + static_cast<std::int32_t>(i);
        if (at < span.start_position)
          return sequence.ring_rows + std::int64_t{at - sequence.first_ring} * dim_;
        return floats(p_.kv) + (span.first_token + at - span.start_position) * dim_;
      }
      const std::int64_t entry = selected == nullptr ? i - raw : selected[i - raw];
      PIVOT_CHECK(entry >= 0 && entry < visible, "entry {} of {} at position {}", entry, visible, position);
      if (sequence.compressed_rows != nullptr) return sequence.compressed_rows + entry * dim_;
      widen_entry(span, entry, space);
      return space;
    };
    const auto load_tile = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        rows[static_cast<std::size_t>(i - begin)] = row_at(i, widened.data() + (i - begin) * dim_);
    };
    widened.resize(static_cast<std::size_t>(std::min(total, kTileRows) * dim_));
    rows.resize(static_cast<std::size_t>(std::min(total, kTileRows)));
    const std::int64_t stride = (total + kLanes - 1) / kLanes * kLanes;
    scores.resize(static_cast<std::size_t>(count * stride));

    const float* q = floats(p_.q) + (token * heads_ + first) * dim_;
    float* o = floats(p_.o) + (token * heads_ + first) * dim_;
    for (std::int64_t begin = 0; begin < total; begin += kTileRows) {
      const std::int64_t size = std::min(kTileRows, total - begin);
      load_tile(begin, begin + size);
      kernels_.row_scores(q, count, dim_, rows.data(), size, softmax_scale_, scores.data() + begin, stride);
    }
    float denominators[kMaxHeads];
    for (std::int64_t h = 0; h < count; ++h)
      denominators[h] = kernels_.softmax(scores.data() + h * stride, total,
                                         p_.weights->attn_sink[static_cast<std::size_t>(first + h)], round_);
    std::fill_n(o, count * dim_, 0.0f);
    for (std::int64_t begin = 0; begin < total; begin += kTileRows) {
      const std::int64_t size = std::min(kTileRows, total - begin);
      if (total > kTileRows) load_tile(begin, begin + size);
      kernels_.weighted_rows(scores.data() + begin, stride, count, dim_, rows.data(), size, o);
    }
    const std::int64_t pairs = config_.qk_rope_head_dim / 2;
    float negative_sin[kMaxPairs];
    for (std::int64_t i = 0; i < pairs; ++i) negative_sin[i] = -angles_.sin(token)[i];
    for (std::int64_t h = 0; h < count; ++h) {
      float* head = o + h * dim_;
      kernels_.divide_row(head, denominators[h], dim_, round_);
      kernels_.rotate(head + dim_ - 2 * pairs, angles_.cos(token), negative_sin, pairs, round_);
    }
  }

  Context& context_;
  const Kernels& kernels_;
  const ModelConfig& config_;
  int ratio_;
  const StepBatch& batch_;
  const AttentionParams& p_;
  bool round_;
  std::int64_t heads_, dim_;
  float softmax_scale_;
  const RopeTable& angles_;
  std::vector<Sequence> sequences_;
};

// The rows that the ring still holds after the step.
void commit_rows(Context& context, const StepBatch& batch, const AttentionParams& p, std::int64_t dim) {
  const RingView& ring = p.cache.window;
  const std::int32_t groups = kv_scale_groups(ring.layout);
  const auto commit = [&](std::int64_t token) {
    const SequenceSpan& span = batch.spans[batch.span_of[token]];
    const auto index = static_cast<std::int32_t>(token - span.first_token);
    if (index < span.num_tokens - ring.rows) return;  // a later token of the step takes its place
    const RowPointers out = reference::ring_row(ring, span.slot, span.start_position + index);
    const float* row = floats(p.kv) + token * dim;
    if (ring.layout.format == RowFormat::kKvPacked && p.kv_scales != nullptr)
      pack_kv_row(ring.layout, row, p.kv_scales + token * groups, out.data, out.scales);
    else
      pack_row(ring.layout, row, out.data, out.scales);
  };
  context.for_each(batch.num_tokens, commit);
}

}  // namespace

void attention(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const AttentionParams& p) {
  const RingView& ring = p.cache.window;
  PIVOT_CHECK(rounds(knobs) || ring.layout.format == RowFormat::kF32,
              "activations=f32 needs f32 rows, not format {}", static_cast<int>(ring.layout.format));
  PIVOT_CHECK(ring.rows >= layer.config->sliding_window, "ring of {} rows, window {}", ring.rows,
              layer.config->sliding_window);
  Attention(context, layer, knobs, batch, p).run();
  commit_rows(context, batch, p, layer.config->head_dim);
}

void attention_out(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                   const AttentionOutParams& p) {
  const ModelConfig& config = *layer.config;
  const bool round = rounds(knobs);
  const Matrix& wo_a = p.weights->wo_a;
  const std::int64_t row_floats = config.num_attention_heads * config.head_dim;
  const std::int64_t z_cols = config.o_groups * config.o_lora_rank;
  const InputKind kind = input_kind(wo_a, knobs.wo_a_act);
  auto* z = context.scratch.take<float>(std::min<std::int64_t>(batch.num_tokens, kOutputTokens) * z_cols);
  const Scratch::Mark mark = context.scratch.mark();
  for (std::int64_t first = 0; first < batch.num_tokens; first += kOutputTokens) {
    context.scratch.release(mark);
    const std::int64_t tokens = std::min<std::int64_t>(kOutputTokens, batch.num_tokens - first);
    std::vector<LinearJob> jobs;
    for (std::int64_t g = 0; g < config.o_groups; ++g) {
      const float* o = floats(p.o) + first * row_floats + g * wo_a.cols;
      const std::vector<PreparedInput> input =
          prepare_inputs(context, o, tokens, wo_a.cols, row_floats, std::span(&kind, 1));
      jobs.push_back({&wo_a, kind.order, g * config.o_lora_rank, (g + 1) * config.o_lora_rank, input[0].rows,
                      tokens, z + g * config.o_lora_rank, z_cols, round});
    }
    run_linear(context, jobs);
    LinearStep step(context, z, tokens, z_cols);
    step.add(p.weights->wo_b, knobs.dense_act, floats(p.out) + first * config.hidden_size, round);
    step.run();
  }
}

}  // namespace pivot::simd
