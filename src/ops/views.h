// What an op sees of a step and of the cache: plain structs of pointers, shared by every back-end.
//
// Every pointer lives in the back-end's memory unless it says host. Free of library headers: nvcc compiles it
// too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/row_layout.h"

namespace pivot {

// One sequence's share of a step: tokens [first_token, first_token+num_tokens) of the step are its positions
// [start_position, start_position+num_tokens).
struct SequenceSpan {
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;
  std::int32_t start_position = 0;
  std::int32_t slot = 0;   // row of the per-sequence state arrays (rings, compressor states)
  std::int32_t table = 0;  // row of the page tables
};

struct StepBatch {
  std::int32_t num_tokens = 0;              // T
  const std::int32_t* token_ids = nullptr;  // [T]
  const std::int32_t* positions = nullptr;  // [T]
  const std::int32_t* span_of = nullptr;    // [T] index into spans
  std::int32_t num_spans = 0;
  const SequenceSpan* spans = nullptr;       // [num_spans]; sorted by first_token
  const SequenceSpan* host_spans = nullptr;  // host copy of spans, for launch decisions
};

// ---- cache views ----

// Raw rows of the last positions: position p lies in row p mod `rows` of its sequence's slot.
struct RingView {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
  std::int32_t rows = 0;  // >= sliding_window
  RowLayout layout;       // the slot is one page of `rows` rows
};

// Rows addressed by entry index through a page table: entry j is row j mod page_rows of page table[j /
// page_rows].
struct PagedView {
  std::byte* base = nullptr;
  std::int64_t page_bytes = 0;
  std::int32_t page_rows = 0;
  RowLayout layout;
  const std::int32_t* page_table = nullptr;  // [tables][table_stride]
  std::int32_t table_stride = 0;
};

// Compressor state: the last `rows` tokens' k and s vectors (specification 2.5, ring form):
// [slot][rows][2][coff*w] f32, k then s (s includes ape). Position p lies in row p mod `rows`. rows >= 8
// (ratio 4) or 128 (ratio 128).
struct CompressorStateView {
  float* base = nullptr;
  std::int64_t slot_floats = 0;
  std::int32_t rows = 0;
  std::int32_t width = 0;  // coff*w
};

struct LayerCacheView {
  RingView window;
  PagedView compressed;            // ratio 4 and 128
  CompressorStateView compressor;  // ratio 4 and 128
  PagedView index_keys;            // ratio 4
  CompressorStateView index_compressor;
};

}  // namespace pivot
