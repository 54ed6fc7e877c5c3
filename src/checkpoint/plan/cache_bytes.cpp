#include "checkpoint/plan/cache_bytes.h"

#include <algorithm>

#include "numeric/row_layout.h"

namespace pivot {

namespace {

RowLayout kv_layout(const ModelConfig& config, KvFormat format) {
  const auto width = static_cast<std::int32_t>(config.head_dim);
  return format == KvFormat::kPacked
             ? kv_packed_layout(width, static_cast<std::int32_t>(config.qk_rope_head_dim))
             : bf16_layout(width);
}

RowLayout index_layout(const ModelConfig& config, IndexFormat format) {
  const auto width = static_cast<std::int32_t>(config.index_head_dim);
  switch (format) {
    case IndexFormat::kFp4:
      return index_fp4_layout(width);
    case IndexFormat::kFp8:
      return index_fp8_layout(width);
    case IndexFormat::kBf16:
      break;
  }
  return bf16_layout(width);
}

// Bytes that a page of `rows` rows has beyond its rows.
double page_padding(const RowLayout& layout, std::int64_t rows) {
  return static_cast<double>(layout.page_bytes(static_cast<std::int32_t>(rows)) - rows * layout.row_bytes());
}

}  // namespace

const char* to_string(KvFormat format) { return format == KvFormat::kPacked ? "fp8" : "bf16"; }

const char* to_string(IndexFormat format) {
  switch (format) {
    case IndexFormat::kFp4:
      return "fp4";
    case IndexFormat::kFp8:
      return "fp8";
    case IndexFormat::kBf16:
      break;
  }
  return "bf16";
}

std::int64_t kv_row_bytes(const ModelConfig& config, KvFormat format) {
  return kv_layout(config, format).row_bytes();
}
std::int64_t index_key_bytes(const ModelConfig& config, IndexFormat format) {
  return index_layout(config, format).row_bytes();
}

CacheBytes cache_bytes(const ModelConfig& config, const CacheFormats& formats, int draft_stages) {
  constexpr std::int64_t kStateBytes = 2 * 4;  // K and G, fp32
  const RowLayout kv = kv_layout(config, formats.kv);
  const RowLayout index = index_layout(config, formats.index);
  CacheBytes bytes;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int ratio = config.ratio(layer);
    bytes.rings += config.sliding_window * kv.row_bytes();
    if (ratio == 0) continue;
    const double rows_per_token = 1.0 / ratio;
    (ratio == 4 ? bytes.ratio4_per_token : bytes.ratio128_per_token) += kv.row_bytes() * rows_per_token;
    bytes.padding_per_token += page_padding(kv, kPageTokens / ratio) / kPageTokens;
    if (ratio == 4) {
      bytes.index_per_token += index.row_bytes() * rows_per_token;
      bytes.padding_per_token += page_padding(index, kPageTokens / ratio) / kPageTokens;
      // 8 rows of two series, for the main compressor and the indexer's.
      bytes.compressor_state += kStateBytes * 8 * 2 * (config.head_dim + config.index_head_dim);
    } else {
      bytes.compressor_state += kStateBytes * ratio * config.head_dim;
    }
  }
  bytes.draft_rings = draft_stages * config.sliding_window * kv.row_bytes();
  return bytes;
}

CacheReads cache_reads(const ModelConfig& config, const CacheFormats& formats, double context_tokens) {
  const auto row = static_cast<double>(kv_row_bytes(config, formats.kv));
  const auto key = static_cast<double>(index_key_bytes(config, formats.index));
  CacheReads reads;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    reads.window += std::min(context_tokens, static_cast<double>(config.sliding_window)) * row;
    if (config.ratio(layer) == 4) {
      reads.ratio4 += std::min(context_tokens / 4, static_cast<double>(config.index_topk)) * row;
      reads.index += context_tokens / 4 * key;
    } else if (config.ratio(layer) == 128) {
      reads.ratio128 += context_tokens / 128 * row;
    }
  }
  return reads;
}

}  // namespace pivot
