#include "cache/snapshot.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace pivot {
namespace {

constexpr PagePool kPools[] = {PagePool::kRatio4, PagePool::kRatio128};

std::string describe_part(const SnapshotPart& part) {
  return fmt::format("{} of layer {}", to_string(part.component), part.layer);
}

bool is_state(Component component) {
  return component == Component::kCompressor || component == Component::kIndexCompressor;
}

std::int32_t state_width(const CacheLayout& layout, const SnapshotPart& part) {
  if (part.component == Component::kIndexCompressor) return layout.index_compressor_width;
  return layout.layers[static_cast<std::size_t>(part.layer)].ratio == 4 ? layout.compressor_width4
                                                                        : layout.compressor_width128;
}

// A state copied to the host, slot and pages, with the row addresses that a part needs. Reading fills it from
// the pool, writing flushes it back.
class HostImage {
 public:
  // Of a sequence, whole.
  explicit HostImage(const SequenceState& sequence) : pool_(sequence.pool()), slot_id_(sequence.slot()) {
    resize();
    for (PagePool pool : kPools) take_pages(pool, sequence.pages(pool), 0);
    transfer(/*to_device=*/false);
  }
  // Of an image, with the pages of tokens from `from` on.
  HostImage(const StateImage& image, std::int64_t from) : pool_(image.pool()) {
    resize();
    for (PagePool pool : kPools) take_pages(pool, image.pages(pool), from / layout_.options.block_tokens);
    transfer(/*to_device=*/false);
    image.copy_fixed(slot_);
  }

  void flush() { transfer(/*to_device=*/true); }

  // Copies a part's rows out of (or into, with `write`) this image.
  void copy_part(const SnapshotPart& part, std::byte* bytes, bool write) {
    const LayerLayout& layer = layout_.layers[static_cast<std::size_t>(part.layer)];
    const std::int64_t rows = part.end - part.begin;
    if (is_state(part.component)) {
      const std::int64_t row_bytes =
          std::int64_t{2} * state_width(layout_, part) * static_cast<std::int64_t>(sizeof(float));
      const std::int64_t offset =
          part.component == Component::kCompressor ? layer.compressor_offset : layer.index_compressor_offset;
      for (std::int64_t i = 0; i < rows; ++i)
        move(slot_.data() + offset + (part.begin + i) % layout_.state_rows(layer.ratio) * row_bytes,
             bytes + i * row_bytes, row_bytes, write);
      return;
    }
    const bool is_window = part.component == Component::kWindow;
    const RowLayout& row = part.component == Component::kIndexKeys ? layout_.index_key : layout_.kv;
    for (std::int64_t i = 0; i < rows; ++i) {
      std::byte* page = nullptr;
      std::int32_t page_rows = 0;
      std::int32_t index = 0;
      if (is_window) {
        page_rows = layout_.options.window_rows;
        page = slot_.data() + layer.window_offset;
        index = static_cast<std::int32_t>((part.begin + i) % page_rows);
      } else {
        const PagePool pool = layout_.pool_of(part.layer);
        page_rows = layout_.page_rows(pool);
        const std::int64_t number = (part.begin + i) / page_rows - first_page_;
        page = pages_[static_cast<int>(pool)].data() + number * layout_.page_bytes[static_cast<int>(pool)] +
               (part.component == Component::kIndexKeys ? layer.index_keys_offset : layer.compressed_offset);
        index = static_cast<std::int32_t>((part.begin + i) % page_rows);
      }
      move(page + row.data_offset(index), bytes + i * row.data_bytes, row.data_bytes, write);
      move(page + row.scale_offset(index, page_rows), bytes + rows * row.data_bytes + i * row.scale_bytes,
           row.scale_bytes, write);
    }
  }

 private:
  static void move(std::byte* image, std::byte* bytes, std::int64_t size, bool write) {
    if (write)
      std::memcpy(image, bytes, static_cast<std::size_t>(size));
    else
      std::memcpy(bytes, image, static_cast<std::size_t>(size));
  }

  void resize() { slot_.resize(static_cast<std::size_t>(layout_.slot_bytes)); }

  // A page is a block in either pool, so both leave out the same number.
  void take_pages(PagePool pool, std::span<const std::int32_t> ids, std::int64_t first) {
    first_page_ = first;
    auto& taken = ids_[static_cast<int>(pool)];
    taken.assign(ids.begin() + std::min<std::ptrdiff_t>(first, std::ssize(ids)), ids.end());
    pages_[static_cast<int>(pool)].resize(
        taken.size() * static_cast<std::size_t>(layout_.page_bytes[static_cast<int>(pool)]));
  }

  void transfer(bool to_device) {
    const auto one = [&](std::byte* device, std::byte* host, std::int64_t bytes) {
      if (to_device)
        pool_.backend().upload(device, host, bytes);
      else
        pool_.backend().download(host, device, bytes);
    };
    if (slot_id_ >= 0) one(pool_.slot_data(slot_id_), slot_.data(), layout_.slot_bytes);
    for (PagePool kind : kPools) {
      const std::int64_t page_bytes = layout_.page_bytes[static_cast<int>(kind)];
      std::byte* host = pages_[static_cast<int>(kind)].data();
      for (std::int32_t page : ids_[static_cast<int>(kind)]) {
        one(pool_.page_data(kind, PageId{page}), host, page_bytes);
        host += page_bytes;
      }
    }
  }

  CachePool& pool_;
  const CacheLayout& layout_ = pool_.layout();
  std::int32_t slot_id_ = -1;
  std::int64_t first_page_ = 0;
  std::vector<std::byte> slot_;
  std::vector<std::int32_t> ids_[kNumPagePools];
  std::vector<std::byte> pages_[kNumPagePools];
};

bool grows(Component component) {
  return component == Component::kCompressed || component == Component::kIndexKeys;
}

// Gives the parts their places and copies them.
void fill_parts(Snapshot& snapshot, HostImage& image) {
  std::int64_t total = 0;
  for (SnapshotPart& part : snapshot.parts) {
    part.offset = total;
    total += part.size_bytes;
  }
  snapshot.bytes.resize(static_cast<std::size_t>(total));
  for (SnapshotPart& part : snapshot.parts) {
    const std::span<std::byte> bytes =
        std::span(snapshot.bytes)
            .subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.size_bytes));
    image.copy_part(part, bytes.data(), /*write=*/false);
    part.checksum = snapshot_checksum(bytes);
  }
}

}  // namespace

std::string byte_layout_id(const RowLayout& layout) {
  switch (layout.format) {
    case RowFormat::kKvPacked:
      return fmt::format("kv_packed:{}:{}", layout.width, layout.rope);
    case RowFormat::kBf16:
      return fmt::format("bf16:{}", layout.width);
    case RowFormat::kF32:
      return fmt::format("f32:{}", layout.width);
    case RowFormat::kIndexFp4:
      return fmt::format("index_fp4:{}", layout.width);
    case RowFormat::kIndexFp8:
      return fmt::format("index_fp8:{}", layout.width);
  }
  return "unknown";
}

std::vector<SnapshotPart> required_parts(const CacheLayout& layout, std::int64_t position) {
  std::vector<SnapshotPart> parts;
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    const int ratio = layout.layers[l].ratio;
    const auto add_rows = [&](Component component, std::int64_t begin, std::int64_t end,
                              const RowLayout& row) {
      if (begin == end) return;
      parts.push_back({component, static_cast<std::int32_t>(l), begin, end, byte_layout_id(row), 0,
                       (end - begin) * row.row_bytes(), 0});
    };
    const auto add_state = [&](Component component, std::int32_t width) {
      const std::int64_t begin = first_state_row(position, ratio);
      if (begin == position) return;
      parts.push_back({component, static_cast<std::int32_t>(l), begin, position,
                       fmt::format("state_f32:{}", width), 0,
                       (position - begin) * 2 * width * static_cast<std::int64_t>(sizeof(float)), 0});
    };
    add_rows(Component::kWindow, first_window_row(position, layout.sliding_window), position, layout.kv);
    if (ratio == 0) continue;
    add_rows(Component::kCompressed, 0, position / ratio, layout.kv);
    if (ratio == 4) add_rows(Component::kIndexKeys, 0, position / ratio, layout.index_key);
    add_state(Component::kCompressor, ratio == 4 ? layout.compressor_width4 : layout.compressor_width128);
    if (ratio == 4) add_state(Component::kIndexCompressor, layout.index_compressor_width);
  }
  return parts;
}

Snapshot export_sequence(const SequenceState& sequence, std::uint64_t checkpoint_fingerprint) {
  const CacheLayout& layout = sequence.pool().layout();
  Snapshot snapshot;
  snapshot.checkpoint_fingerprint = checkpoint_fingerprint;
  snapshot.knobs_hash = layout.state_hash;
  snapshot.tokens.assign(sequence.tokens().begin(), sequence.tokens().end());
  snapshot.parts = required_parts(layout, sequence.position());
  HostImage image(sequence);
  fill_parts(snapshot, image);
  return snapshot;
}

Snapshot export_image(const StateImage& image, std::span<const TokenId> tokens, std::int64_t from,
                      std::uint64_t checkpoint_fingerprint) {
  const CacheLayout& layout = image.pool().layout();
  PIVOT_CHECK(static_cast<std::int64_t>(tokens.size()) == image.position() && from >= 0 &&
                  from <= image.position() && from % layout.options.block_tokens == 0,
              "{} tokens, from {}, position {}", tokens.size(), from, image.position());
  Snapshot snapshot;
  snapshot.checkpoint_fingerprint = checkpoint_fingerprint;
  snapshot.knobs_hash = layout.state_hash;
  snapshot.tokens.assign(tokens.begin() + from, tokens.end());
  for (SnapshotPart part : required_parts(layout, image.position())) {
    if (grows(part.component)) {
      const std::int64_t row_bytes = part.size_bytes / (part.end - part.begin);
      part.begin = from / layout.layers[static_cast<std::size_t>(part.layer)].ratio;
      if (part.begin == part.end) continue;
      part.size_bytes = (part.end - part.begin) * row_bytes;
    }
    snapshot.parts.push_back(std::move(part));
  }
  HostImage host(image, from);
  fill_parts(snapshot, host);
  return snapshot;
}

std::uint64_t snapshot_checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Result<> import_sequence(SequenceState& sequence, const Snapshot& snapshot,
                         std::uint64_t checkpoint_fingerprint) {
  PIVOT_CHECK(sequence.position() == 0, "position {}", sequence.position());
  const CacheLayout& layout = sequence.pool().layout();
  if (snapshot.checkpoint_fingerprint != checkpoint_fingerprint)
    return fail(ErrorCode::kInvalidArgument,
                "the snapshot was made with another checkpoint (fingerprint {:016x}, this model has "
                "{:016x}); compute the "
                "prompt again",
                snapshot.checkpoint_fingerprint, checkpoint_fingerprint);
  if (snapshot.knobs_hash != layout.state_hash)
    return fail(
        ErrorCode::kInvalidArgument,
        "the snapshot was made with other knobs that change state bytes (hash {:016x}, these have {:016x}); "
        "compute the prompt again",
        snapshot.knobs_hash, layout.state_hash);

  const auto position = static_cast<std::int64_t>(snapshot.tokens.size());
  const std::vector<SnapshotPart> required = required_parts(layout, position);
  std::vector<const SnapshotPart*> found(required.size(), nullptr);
  for (const SnapshotPart& part : snapshot.parts) {
    const auto wanted = std::find_if(required.begin(), required.end(), [&](const SnapshotPart& r) {
      return r.component == part.component && r.layer == part.layer;
    });
    if (wanted == required.end())
      return fail(ErrorCode::kInvalidData,
                  "the snapshot has a {}, which this model's state at position {} does not have",
                  describe_part(part), position);
    const SnapshotPart*& entry = found[static_cast<std::size_t>(wanted - required.begin())];
    if (entry != nullptr)
      return fail(ErrorCode::kInvalidData, "the snapshot has the {} twice", describe_part(part));
    if (part.begin != wanted->begin || part.end != wanted->end)
      return fail(ErrorCode::kInvalidData,
                  "the snapshot's {} covers rows {} to {}; position {} needs {} to {}", describe_part(part),
                  part.begin, part.end, position, wanted->begin, wanted->end);
    if (part.byte_layout != wanted->byte_layout || part.size_bytes != wanted->size_bytes)
      return fail(ErrorCode::kInvalidData,
                  "the snapshot's {} is {} bytes laid out as {}; this cache needs {} bytes as {}",
                  describe_part(part), part.size_bytes, part.byte_layout, wanted->size_bytes,
                  wanted->byte_layout);
    const auto available = static_cast<std::int64_t>(snapshot.bytes.size());
    if (part.offset < 0 || part.offset > available || part.size_bytes > available - part.offset)
      return fail(ErrorCode::kInvalidData, "the snapshot's {} lies at {}+{}, outside its {} bytes",
                  describe_part(part), part.offset, part.size_bytes, available);
    if (snapshot_checksum(std::span(snapshot.bytes)
                              .subspan(static_cast<std::size_t>(part.offset),
                                       static_cast<std::size_t>(part.size_bytes))) != part.checksum)
      return fail(ErrorCode::kInvalidData, "the snapshot's {} is damaged: its checksum differs",
                  describe_part(part));
    entry = &part;
  }
  for (std::size_t i = 0; i < required.size(); ++i)
    if (found[i] == nullptr)
      return fail(ErrorCode::kInvalidData, "the snapshot is incomplete: the {} (rows {} to {}) is missing",
                  describe_part(required[i]), required[i].begin, required[i].end);

  PIVOT_TRY_VOID(sequence.reserve(position));
  HostImage image(sequence);
  for (const SnapshotPart* part : found)
    image.copy_part(*part, const_cast<std::byte*>(snapshot.bytes.data()) + part->offset, /*write=*/true);
  image.flush();
  sequence.append(snapshot.tokens);
  sequence.mark_restored();
  return {};
}

}  // namespace pivot
