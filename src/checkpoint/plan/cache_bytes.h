// Bytes of a sequence's state, by component (specification 5): the growing part per token, the fixed part per
// sequence, and what one decoded token reads.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"

namespace pivot {

enum class KvFormat : std::uint8_t { kPacked, kBf16 };        // 584 or 1024 bytes a row at 512 + 64 dims
enum class IndexFormat : std::uint8_t { kFp4, kFp8, kBf16 };  // 68, 132 or 256 bytes a key of 128 dims
const char* to_string(KvFormat format);
const char* to_string(IndexFormat format);

struct CacheFormats {
  KvFormat kv = KvFormat::kPacked;        // exact with respect to the reference (specification 5.1)
  IndexFormat index = IndexFormat::kFp4;  // likewise
};

std::int64_t kv_row_bytes(const ModelConfig& config, KvFormat format);
std::int64_t index_key_bytes(const ModelConfig& config, IndexFormat format);

// Tokens of one page: 64 rows of ratio 4, 2 rows of ratio 128 (design.md section 4).
inline constexpr std::int64_t kPageTokens = 256;

struct CacheBytes {
  // Per token of context, all layers, without padding (specification 5.2).
  double ratio4_per_token = 0;
  double ratio128_per_token = 0;
  double index_per_token = 0;
  double per_token() const { return ratio4_per_token + ratio128_per_token + index_per_token; }
  // What pages add: every page's rows are padded to whole row strides (specification 5.1).
  double padding_per_token = 0;
  double allocated_per_token() const { return per_token() + padding_per_token; }
  // Per sequence (specification 5.3).
  std::int64_t rings = 0;
  std::int64_t draft_rings = 0;
  std::int64_t compressor_state = 0;  // fp32 K and G of every compressor
  std::int64_t per_sequence() const { return rings + draft_rings + compressor_state; }
};
CacheBytes cache_bytes(const ModelConfig& config, const CacheFormats& formats, int draft_stages);

// Bytes that attention and the indexer read for one decoded token at `context` tokens (specification 5.4).
struct CacheReads {
  double window = 0;
  double ratio4 = 0;    // the top-k rows
  double ratio128 = 0;  // all rows
  double index = 0;     // all keys
  double total() const { return window + ratio4 + ratio128 + index; }
};
CacheReads cache_reads(const ModelConfig& config, const CacheFormats& formats, double context_tokens);

}  // namespace pivot
