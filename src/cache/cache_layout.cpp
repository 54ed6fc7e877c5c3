#include "cache/cache_layout.h"

#include "base/check.h"

namespace pivot {
namespace {

std::int64_t align_up(std::int64_t bytes) {
  return (bytes + kPartAlignmentBytes - 1) / kPartAlignmentBytes * kPartAlignmentBytes;
}

// Appends a part of `bytes` to a bundle that is `total` long and returns the part's offset.
std::int64_t append_part(std::int64_t& total, std::int64_t bytes) {
  const std::int64_t offset = total;
  total = align_up(total + bytes);
  return offset;
}

// k and s of `rows` tokens, fp32.
std::int64_t state_bytes(std::int32_t rows, std::int32_t width) {
  return std::int64_t{rows} * 2 * width * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

std::string_view to_string(Component component) {
  switch (component) {
    case Component::kWindow:
      return "window";
    case Component::kCompressed:
      return "compressed";
    case Component::kIndexKeys:
      return "index_keys";
    case Component::kCompressor:
      return "compressor";
    case Component::kIndexCompressor:
      return "index_compressor";
  }
  return "unknown";
}

std::string_view to_string(PagePool pool) { return pool == PagePool::kRatio4 ? "ratio4" : "ratio128"; }

RowLayout kv_row_layout(const ModelConfig& config, const Knobs& knobs) {
  const auto width = static_cast<std::int32_t>(config.head_dim);
  // With fp32 activations the rotary dims are not BF16-representable, so no narrower row is exact.
  if (knobs.activations == Activations::kF32) return f32_layout(width);
  if (knobs.kv == KvPrecision::kBf16 || knobs.kv_layout == KvLayout::kWide) return bf16_layout(width);
  return kv_packed_layout(width, static_cast<std::int32_t>(config.qk_rope_head_dim));
}

RowLayout index_key_layout(const ModelConfig& config, const Knobs& knobs) {
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

Result<CacheLayout> make_cache_layout(const ModelConfig& config, const Knobs& knobs,
                                      const CacheOptions& options) {
  CacheLayout layout;
  layout.options = options;
  layout.sliding_window = static_cast<std::int32_t>(config.sliding_window);
  if (layout.options.window_rows == 0) layout.options.window_rows = layout.sliding_window;
  if (options.block_tokens < 128 || options.block_tokens % 128 != 0)
    return fail(ErrorCode::kInvalidArgument, "block_tokens is {}; it must be a positive multiple of 128",
                options.block_tokens);
  if (layout.options.window_rows < layout.sliding_window)
    return fail(ErrorCode::kInvalidArgument,
                "window_rows is {}; the model's sliding window needs at least {}", options.window_rows,
                layout.sliding_window);
  if (options.ratio4_state_rows < 8)
    return fail(ErrorCode::kInvalidArgument,
                "ratio4_state_rows is {}; a ratio-4 entry is pooled from 8 tokens, so at "
                "least 8 are needed",
                options.ratio4_state_rows);
  if (options.ratio128_state_rows < 128)
    return fail(ErrorCode::kInvalidArgument,
                "ratio128_state_rows is {}; a ratio-128 entry is pooled from 128 tokens, "
                "so at least 128 are needed",
                options.ratio128_state_rows);

  layout.kv = kv_row_layout(config, knobs);
  layout.index_key = index_key_layout(config, knobs);
  layout.compressor_width4 = static_cast<std::int32_t>(2 * config.head_dim);
  layout.compressor_width128 = static_cast<std::int32_t>(config.head_dim);
  layout.index_compressor_width = static_cast<std::int32_t>(2 * config.index_head_dim);
  layout.state_hash = state_hash(knobs);

  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerLayout part;
    part.ratio = config.ratio(l);
    part.window_offset = append_part(layout.slot_bytes, layout.kv.page_bytes(layout.options.window_rows));
    if (part.ratio == 4) {
      std::int64_t& page = layout.page_bytes[static_cast<int>(PagePool::kRatio4)];
      const std::int32_t rows = layout.page_rows(PagePool::kRatio4);
      part.compressor_offset = append_part(
          layout.slot_bytes, state_bytes(layout.options.ratio4_state_rows, layout.compressor_width4));
      part.index_compressor_offset = append_part(
          layout.slot_bytes, state_bytes(layout.options.ratio4_state_rows, layout.index_compressor_width));
      part.compressed_offset = append_part(page, layout.kv.page_bytes(rows));
      part.index_keys_offset = append_part(page, layout.index_key.page_bytes(rows));
    } else if (part.ratio == 128) {
      std::int64_t& page = layout.page_bytes[static_cast<int>(PagePool::kRatio128)];
      part.compressor_offset = append_part(
          layout.slot_bytes, state_bytes(layout.options.ratio128_state_rows, layout.compressor_width128));
      part.compressed_offset = append_part(page, layout.kv.page_bytes(layout.page_rows(PagePool::kRatio128)));
    }
    layout.layers.push_back(part);
  }
  return layout;
}

std::int64_t CacheLayout::pages_for(PagePool pool, std::int64_t tokens) const {
  if (!uses(pool)) return 0;
  const std::int64_t entries = tokens / pool_ratio(pool);
  const std::int64_t rows = page_rows(pool);
  return (entries + rows - 1) / rows;
}

double CacheLayout::bytes_per_token(std::int64_t layer) const {
  switch (layers[static_cast<std::size_t>(layer)].ratio) {
    case 4:
      return (kv.row_bytes() + index_key.row_bytes()) / 4.0;
    case 128:
      return kv.row_bytes() / 128.0;
    default:
      return 0.0;
  }
}

double CacheLayout::bytes_per_token() const {
  double total = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) total += bytes_per_token(static_cast<std::int64_t>(l));
  return total;
}

std::int64_t CacheLayout::window_payload_bytes() const {
  return static_cast<std::int64_t>(layers.size()) * options.window_rows * kv.row_bytes();
}

std::int64_t CacheLayout::compressor_payload_bytes() const {
  std::int64_t total = 0;
  for (const LayerLayout& layer : layers) {
    if (layer.ratio == 4)
      total += state_bytes(options.ratio4_state_rows, compressor_width4) +
               state_bytes(options.ratio4_state_rows, index_compressor_width);
    if (layer.ratio == 128) total += state_bytes(options.ratio128_state_rows, compressor_width128);
  }
  return total;
}

std::int64_t CacheLayout::planned_bytes(std::int64_t num_slots, std::int64_t num_ratio4_pages,
                                        std::int64_t num_ratio128_pages) const {
  PIVOT_CHECK(num_slots >= 0 && num_ratio4_pages >= 0 && num_ratio128_pages >= 0, "{} {} {}", num_slots,
              num_ratio4_pages, num_ratio128_pages);
  return num_slots * slot_bytes + num_ratio4_pages * page_bytes[static_cast<int>(PagePool::kRatio4)] +
         num_ratio128_pages * page_bytes[static_cast<int>(PagePool::kRatio128)];
}

std::int64_t CacheLayout::planned_bytes_for(std::int64_t sequences, std::int64_t tokens) const {
  return planned_bytes(sequences, sequences * pages_for(PagePool::kRatio4, tokens),
                       sequences * pages_for(PagePool::kRatio128, tokens));
}

}  // namespace pivot
