// Where every byte of a sequence's state lies: a pure function of the model, the knobs and a few sizes.
//
// State has two parts. The fixed part of a sequence is one contiguous *slot*: for each layer the window ring
// and the fp32 compressor states. The growing part lies in *pages* of block_tokens tokens, in two pools: a
// ratio-4 page carries the compressed rows AND the index keys of every ratio-4 layer for its block, a
// ratio-128 page the compressed rows of every ratio-128 layer. So one page id per block and pool is all the
// bookkeeping a sequence needs, and a page (or a slot) is one contiguous range for a copy, a checksum or a
// transfer.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_config.h"
#include "numeric/row_layout.h"
#include "ops/knobs.h"

namespace pivot {

// The kinds of state a layer can have; snapshots name them.
enum class Component : std::uint8_t { kWindow, kCompressed, kIndexKeys, kCompressor, kIndexCompressor };
inline constexpr int kNumComponents = 5;
std::string_view to_string(Component component);  // "window", "compressed", "index_keys", "compressor", ...

// The page pools.
enum class PagePool : std::uint8_t { kRatio4, kRatio128 };
inline constexpr int kNumPagePools = 2;
std::string_view to_string(PagePool pool);  // "ratio4", "ratio128"
constexpr int pool_ratio(PagePool pool) { return pool == PagePool::kRatio4 ? 4 : 128; }

struct CacheOptions {
  std::int32_t block_tokens = 256;  // tokens of a page; a multiple of 128
  std::int32_t window_rows = 0;     // ring rows; 0: sliding_window. More allows a rollback by the difference
  std::int32_t ratio4_state_rows = 8;      // >= 8: compressor ring rows of ratio-4 layers
  std::int32_t ratio128_state_rows = 128;  // >= 128
};

// Every part starts at a multiple of this (a GPU cache line; also what wide CPU loads want).
inline constexpr std::int64_t kPartAlignmentBytes = 128;

struct LayerLayout {
  int ratio = 0;
  // In the slot.
  std::int64_t window_offset = 0;
  std::int64_t compressor_offset = -1;        // ratio 4 and 128
  std::int64_t index_compressor_offset = -1;  // ratio 4
  // In the page of pool kRatio4 or kRatio128.
  std::int64_t compressed_offset = -1;  // ratio 4 and 128
  std::int64_t index_keys_offset = -1;  // ratio 4
};

struct CacheLayout {
  CacheOptions options;  // with window_rows resolved
  std::int32_t sliding_window = 0;
  RowLayout kv;  // window and compressed rows
  RowLayout index_key;
  std::int32_t compressor_width4 = 0;       // coff*w floats of k (and of s): 2*head_dim
  std::int32_t compressor_width128 = 0;     // head_dim
  std::int32_t index_compressor_width = 0;  // 2*index_head_dim
  std::vector<LayerLayout> layers;
  std::int64_t slot_bytes = 0;  // stride of slots, padding included
  std::int64_t page_bytes[kNumPagePools] = {
      0, 0};                     // stride of pages, padding included; 0 where no layer uses the pool
  std::uint64_t state_hash = 0;  // of the knobs (ops/knobs.h)

  std::int32_t page_rows(PagePool pool) const { return options.block_tokens / pool_ratio(pool); }  // 64 and 2
  bool uses(PagePool pool) const { return page_bytes[static_cast<int>(pool)] > 0; }
  std::int32_t state_rows(int ratio) const {
    return ratio == 4 ? options.ratio4_state_rows : options.ratio128_state_rows;
  }
  // Pages that `tokens` tokens of one sequence need in a pool. A page is needed from its block's first entry
  // on.
  std::int64_t pages_for(PagePool pool, std::int64_t tokens) const;
  // The pool of a layer's compressed rows. REQUIRES: ratio 4 or 128.
  PagePool pool_of(std::int64_t layer) const {
    return layers[static_cast<std::size_t>(layer)].ratio == 4 ? PagePool::kRatio4 : PagePool::kRatio128;
  }

  // Payload bytes without padding, as specification 5.2 and 5.3 count them.
  double bytes_per_token() const;  // growing part: sum of rows/ratio over the layers
  double bytes_per_token(std::int64_t layer) const;
  std::int64_t window_payload_bytes() const;      // of one sequence, all layers
  std::int64_t compressor_payload_bytes() const;  // likewise

  // What a pool with these counts allocates, exactly (CachePool::allocated_bytes equals it).
  std::int64_t planned_bytes(std::int64_t num_slots, std::int64_t num_ratio4_pages,
                             std::int64_t num_ratio128_pages) const;
  // The same for `sequences` sequences of up to `tokens` tokens each.
  std::int64_t planned_bytes_for(std::int64_t sequences, std::int64_t tokens) const;
};

// The row layouts that the knobs ask for (knobs.h says what implies what).
RowLayout kv_row_layout(const ModelConfig& config, const Knobs& knobs);
RowLayout index_key_layout(const ModelConfig& config, const Knobs& knobs);

// Errors: kInvalidArgument for options out of range (with the range).
Result<CacheLayout> make_cache_layout(const ModelConfig& config, const Knobs& knobs,
                                      const CacheOptions& options = {});

}  // namespace pivot
