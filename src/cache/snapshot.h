// A sequence's complete state as a manifest and bytes: what the prefix cache, the disk tier and the hand-over
// between machines speak.
//
// A snapshot holds exactly what a continuation reads (specification 5.3): the window rows of the last
// positions, every finished compressed row and index key, the compressor rows of the unfinished block (and of
// the block before it in ratio-4 layers), and the tokens. It does not depend on ring lengths, page sizes or
// page ids, so it can be restored into a pool of other dimensions. Import is complete or refused, naming what
// is missing or different.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/sequence_state.h"
#include "cache/state_image.h"

namespace pivot {

// One component of one layer. The bytes of rows [begin, end): for cache rows one page of end-begin rows
// without the page padding (all row data, then all scale bytes: numeric/row_layout.h), for compressor states
// [end-begin][2][width] f32.
struct SnapshotPart {
  Component component = Component::kWindow;
  std::int32_t layer = 0;
  std::int64_t begin = 0;  // position (window, compressor states) or entry index (compressed, index keys)
  std::int64_t end = 0;
  std::string byte_layout;  // "kv_packed:512:64", "index_fp4:128", "state_f32:1024": see byte_layout_id
  std::int64_t offset = 0;  // in Snapshot::bytes
  std::int64_t size_bytes = 0;
  std::uint64_t checksum = 0;  // XXH3-64 of the bytes
};

struct Snapshot {
  std::uint64_t checkpoint_fingerprint = 0;  // ModelWeights::fingerprint
  std::uint64_t knobs_hash = 0;              // CacheLayout::state_hash
  std::vector<TokenId> tokens;
  std::vector<SnapshotPart> parts;
  std::vector<std::byte> bytes;
};

std::string byte_layout_id(const RowLayout& layout);

// The parts (without offset and checksum) that a complete snapshot at `position` has, in order of layer and
// component. Parts without rows are left out.
std::vector<SnapshotPart> required_parts(const CacheLayout& layout, std::int64_t position);

// Any position. `checkpoint_fingerprint` identifies the weights that computed the state.
Snapshot export_sequence(const SequenceState& sequence, std::uint64_t checkpoint_fingerprint);

// The same of a state image, without the compressed rows and index keys of the tokens before `from` (a
// multiple of the block, at most the position): what another snapshot at `from` has already. `tokens` are all
// of the image's; the snapshot gets those from `from` on. Complete only with from = 0.
Snapshot export_image(const StateImage& image, std::span<const TokenId> tokens, std::int64_t from,
                      std::uint64_t checkpoint_fingerprint);

// XXH3-64, as SnapshotPart::checksum.
std::uint64_t snapshot_checksum(std::span<const std::byte> bytes);

// Fills an empty sequence. Errors, all before anything is written: kInvalidData naming the component and
// layer that is missing, doubled, of another range or byte layout, or damaged; kInvalidArgument when
// checkpoint or knobs differ; kUnavailable when the pool has no room.
Result<> import_sequence(SequenceState& sequence, const Snapshot& snapshot,
                         std::uint64_t checkpoint_fingerprint);

}  // namespace pivot
