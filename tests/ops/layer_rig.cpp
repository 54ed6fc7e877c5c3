#include "ops/layer_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/rope.h"

namespace pivot::test {

RowLayout kv_layout(const ModelConfig& config, const Knobs& knobs) {
  const auto width = static_cast<std::int32_t>(config.head_dim);
  if (knobs.activations == Activations::kF32) return f32_layout(width);
  if (knobs.kv == KvPrecision::kBf16 || knobs.kv_layout == KvLayout::kWide) return bf16_layout(width);
  return kv_packed_layout(width, static_cast<std::int32_t>(config.qk_rope_head_dim));
}

RowLayout index_layout(const ModelConfig& config, const Knobs& knobs) {
  const auto width = static_cast<std::int32_t>(config.index_head_dim);
  switch (knobs.index_keys) {
    case IndexPrecision::kFp4:
      return index_fp4_layout(width);
    case IndexPrecision::kFp8:
      return index_fp8_layout(width);
    case IndexPrecision::kBf16:
      break;
  }
  return knobs.activations == Activations::kF32 ? f32_layout(width) : bf16_layout(width);
}

LayerRig::LayerRig(Backend& backend, const ModelConfig& config, const LayerWeights& weights, int layer,
                   RigOptions options)
    : backend_(backend),
      config_(config),
      weights_(weights),
      ratio_(config.ratio(layer)),
      options_(options),
      positions_(static_cast<std::size_t>(options.sequences), 0),
      frequencies_(rope_frequencies(config.rope(layer), config.qk_rope_head_dim)) {
  context_ = {&config_, layer, ratio_, frequencies_.data()};
  const std::int64_t rows = config.sliding_window + options.extra_ring_rows;
  const auto sequences = static_cast<std::int64_t>(options.sequences);
  const auto poison = std::byte{0x7f};  // NaN in every format: what is read without having been written shows
  ring_.assign(static_cast<std::size_t>(
                   sequences * kv_layout(config, options.knobs).page_bytes(static_cast<std::int32_t>(rows))),
               poison);
  if (ratio_ == 0) return;
  const int entries = options.max_positions / ratio_ + 1;
  pages_per_sequence_ = (entries + options.page_rows - 1) / options.page_rows;
  const std::int64_t pages = sequences * pages_per_sequence_;
  for (std::int64_t page = 0; page < pages; ++page)
    page_table_.push_back(static_cast<std::int32_t>(options.reversed_pages ? pages - 1 - page : page));
  compressed_.assign(
      static_cast<std::size_t>(pages * kv_layout(config, options.knobs).page_bytes(options.page_rows)),
      poison);
  const std::int64_t series = ratio_ == 4 ? 2 : 1;
  compressor_.assign(static_cast<std::size_t>(sequences * series * ratio_ * 2 * series * config.head_dim),
                     std::nanf(""));
  if (ratio_ != 4) return;
  index_keys_.assign(
      static_cast<std::size_t>(pages * index_layout(config, options.knobs).page_bytes(options.page_rows)),
      poison);
  index_compressor_.assign(static_cast<std::size_t>(sequences * 8 * 2 * 2 * config.index_head_dim),
                           std::nanf(""));
}

LayerCacheView LayerRig::view() const {
  LayerCacheView view;
  const auto ring_rows = static_cast<std::int32_t>(config_.sliding_window) + options_.extra_ring_rows;
  const RowLayout kv = kv_layout(config_, options_.knobs);
  view.window = {const_cast<std::byte*>(ring_.data()), kv.page_bytes(ring_rows), ring_rows, kv};
  if (ratio_ == 0) return view;
  const auto pages = [&](const std::vector<std::byte>& storage, const RowLayout& layout) {
    return PagedView{const_cast<std::byte*>(storage.data()),
                     layout.page_bytes(options_.page_rows),
                     options_.page_rows,
                     layout,
                     page_table_.data(),
                     pages_per_sequence_};
  };
  const std::int32_t series = ratio_ == 4 ? 2 : 1;
  const auto state = [&](const std::vector<float>& storage, std::int64_t width) {
    const std::int32_t rows = series * ratio_;
    return CompressorStateView{const_cast<float*>(storage.data()), rows * 2 * series * width, rows,
                               static_cast<std::int32_t>(series * width)};
  };
  view.compressed = pages(compressed_, kv);
  view.compressor = state(compressor_, config_.head_dim);
  if (ratio_ != 4) return view;
  view.index_keys = pages(index_keys_, index_layout(config_, options_.knobs));
  view.index_compressor = state(index_compressor_, config_.index_head_dim);
  return view;
}

AttentionStep LayerRig::attention(const std::vector<Chunk>& chunks, const std::vector<float>& x) {
  std::vector<SequenceSpan> spans;
  std::vector<std::int32_t> positions, span_of, token_ids;
  for (const Chunk& chunk : chunks) {
    int& position = positions_[static_cast<std::size_t>(chunk.sequence)];
    spans.push_back({static_cast<std::int32_t>(positions.size()), chunk.tokens, position, chunk.sequence,
                     chunk.sequence});
    for (int i = 0; i < chunk.tokens; ++i) {
      positions.push_back(position + i);
      span_of.push_back(static_cast<std::int32_t>(spans.size()) - 1);
      token_ids.push_back(0);
    }
    position += chunk.tokens;
    PIVOT_CHECK(position <= options_.max_positions, "position {} of {}", position, options_.max_positions);
  }
  StepBatch batch;
  batch.num_tokens = static_cast<std::int32_t>(positions.size());
  batch.token_ids = token_ids.data();
  batch.positions = positions.data();
  batch.span_of = span_of.data();
  batch.num_spans = static_cast<std::int32_t>(spans.size());
  batch.spans = batch.host_spans = spans.data();

  const auto tokens = static_cast<std::size_t>(batch.num_tokens);
  PIVOT_CHECK(x.size() == tokens * static_cast<std::size_t>(config_.hidden_size), "{} inputs for {} tokens",
              x.size(), tokens);
  const auto sized = [&](std::int64_t width) {
    return std::vector<float>(tokens * static_cast<std::size_t>(width));
  };
  AttentionStep step;
  step.qr = sized(config_.q_lora_rank);
  step.kv = sized(config_.head_dim);
  step.q = sized(config_.num_attention_heads * config_.head_dim);
  step.o = step.q;
  step.out = sized(config_.hidden_size);
  step.kv_scales.resize(tokens * static_cast<std::size_t>(kv_scale_groups(
                                     kv_packed_layout(static_cast<std::int32_t>(config_.head_dim),
                                                      static_cast<std::int32_t>(config_.qk_rope_head_dim)))));
  step.index_q = sized(ratio_ == 4 ? config_.index_n_heads * config_.index_head_dim : 0);
  step.index_weights = sized(ratio_ == 4 ? config_.index_n_heads : 0);
  const Knobs& knobs = options_.knobs;

  LatentParams latent;
  latent.weights = &weights_.attn;
  latent.x = x.data();
  latent.qr = step.qr.data();
  latent.kv = step.kv.data();
  latent.kv_scales = step.kv_scales.data();
  latent.index_weights = step.index_weights.data();
  latent.cache = view();
  backend_.latent(context_, knobs, batch, latent);

  QueryParams query;
  query.weights = &weights_.attn;
  query.qr = step.qr.data();
  query.q = step.q.data();
  query.index_q = ratio_ == 4 ? step.index_q.data() : nullptr;
  backend_.query(context_, knobs, batch, query);

  AttentionParams attention;
  attention.weights = &weights_.attn;
  attention.q = step.q.data();
  attention.kv = step.kv.data();
  attention.kv_scales = step.kv_scales.data();
  attention.cache = latent.cache;
  attention.o = step.o.data();
  if (ratio_ == 4 && knobs.index_topk != kTopkAll) {
    step.topk = knobs.index_topk == kTopkFromCheckpoint ? static_cast<std::int32_t>(config_.index_topk)
                                                        : knobs.index_topk;
    step.selected.assign(tokens * static_cast<std::size_t>(step.topk), -7);
    step.count.assign(tokens, -7);
    IndexSelectParams select;
    select.index_q = step.index_q.data();
    select.index_weights = step.index_weights.data();
    select.index_keys = latent.cache.index_keys;
    select.topk = step.topk;
    select.selected = step.selected.data();
    select.count = step.count.data();
    backend_.index_select(context_, knobs, batch, select);
    attention.selected = step.selected.data();
    attention.selected_count = step.count.data();
    attention.topk = step.topk;
  }
  backend_.attention(context_, knobs, batch, attention);

  AttentionOutParams out;
  out.weights = &weights_.attn;
  out.o = step.o.data();
  out.out = step.out.data();
  backend_.attention_out(context_, knobs, batch, out);
  return step;
}

std::vector<float> LayerRig::window_row(int sequence, int position) const {
  const RingView ring = view().window;
  const std::int32_t row = position % ring.rows;
  const std::byte* base = ring.base + sequence * ring.slot_bytes;
  std::vector<float> x(static_cast<std::size_t>(ring.layout.width));
  unpack_row(ring.layout, base + ring.layout.data_offset(row),
             base + ring.layout.scale_offset(row, ring.rows), x.data());
  return x;
}

namespace {

std::vector<float> paged_row(const PagedView& pages, int sequence, int entry) {
  const std::int32_t page = pages.page_table[sequence * pages.table_stride + entry / pages.page_rows];
  const std::byte* base = pages.base + page * pages.page_bytes;
  const std::int32_t row = entry % pages.page_rows;
  std::vector<float> x(static_cast<std::size_t>(pages.layout.width));
  unpack_row(pages.layout, base + pages.layout.data_offset(row),
             base + pages.layout.scale_offset(row, pages.page_rows), x.data());
  return x;
}

template <class T>
void append(std::vector<std::uint8_t>& out, const T* data, std::int64_t count) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  out.insert(out.end(), bytes, bytes + count * static_cast<std::int64_t>(sizeof(T)));
}

}  // namespace

std::vector<float> LayerRig::compressed_row(int sequence, int entry) const {
  return paged_row(view().compressed, sequence, entry);
}
std::vector<float> LayerRig::index_row(int sequence, int entry) const {
  return paged_row(view().index_keys, sequence, entry);
}

std::vector<float> LayerRig::state_row(bool index, int sequence, int position) const {
  const LayerCacheView caches = view();
  const CompressorStateView& state = index ? caches.index_compressor : caches.compressor;
  const float* row =
      state.base + sequence * state.slot_floats + std::int64_t{position % state.rows} * 2 * state.width;
  return {row, row + 2 * state.width};
}

void LayerRig::append_paged(const PagedView& pages, int sequence, int entries,
                            std::vector<std::uint8_t>& out) const {
  for (int j = 0; j < entries; ++j) {
    const std::int32_t page = pages.page_table[sequence * pages.table_stride + j / pages.page_rows];
    const std::byte* base = pages.base + page * pages.page_bytes;
    const std::int32_t row = j % pages.page_rows;
    append(out, base + pages.layout.data_offset(row), pages.layout.data_bytes);
    append(out, base + pages.layout.scale_offset(row, pages.page_rows), pages.layout.scale_bytes);
  }
}

std::vector<std::uint8_t> LayerRig::state_bytes(int sequence) const {
  const LayerCacheView caches = view();
  const int end = positions_[static_cast<std::size_t>(sequence)];
  std::vector<std::uint8_t> out;
  const RingView& ring = caches.window;
  for (int p = std::max(0, end - static_cast<int>(config_.sliding_window)); p < end; ++p) {
    const std::int32_t row = p % ring.rows;
    const std::byte* base = ring.base + sequence * ring.slot_bytes;
    append(out, base + ring.layout.data_offset(row), ring.layout.data_bytes);
    append(out, base + ring.layout.scale_offset(row, ring.rows), ring.layout.scale_bytes);
  }
  if (ratio_ == 0) return out;
  append_paged(caches.compressed, sequence, end / ratio_, out);
  const auto append_states = [&](bool index) {
    const int rows = index ? caches.index_compressor.rows : caches.compressor.rows;
    for (int p = std::max(0, end - rows); p < end; ++p) {
      const std::vector<float> row = state_row(index, sequence, p);
      append(out, row.data(), static_cast<std::int64_t>(row.size()));
    }
  };
  append_states(false);
  if (ratio_ != 4) return out;
  append_paged(caches.index_keys, sequence, end / ratio_, out);
  append_states(true);
  return out;
}

}  // namespace pivot::test
