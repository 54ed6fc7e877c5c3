#include "cache/state_image.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pivot {
namespace {

constexpr PagePool kPools[] = {PagePool::kRatio4, PagePool::kRatio128};
// Ranges closer than this are transferred as one: about what a device copies in the time a transfer takes to
// start.
constexpr std::int64_t kMergeGapBytes = 32 << 10;

void add_state_rows(std::vector<SlotRange>& ranges, const CacheLayout& layout, int ratio, std::int64_t offset,
                    std::int32_t width, std::int64_t position) {
  const std::int64_t row_bytes = std::int64_t{2} * width * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t rows = layout.state_rows(ratio);
  const std::int64_t first = first_state_row(position, ratio);
  const std::int64_t count = position - first;
  if (count == 0) return;
  const std::int64_t begin = first % rows;
  const std::int64_t end = begin + count;
  if (end > rows) ranges.push_back({offset, (end - rows) * row_bytes});
  ranges.push_back({offset + begin * row_bytes, (std::min(end, rows) - begin) * row_bytes});
}

}  // namespace

std::vector<SlotRange> slot_ranges(const CacheLayout& layout, std::int64_t position) {
  std::vector<SlotRange> ranges;
  if (position == 0) return ranges;
  for (const LayerLayout& layer : layout.layers) {
    ranges.push_back({layer.window_offset, layout.kv.page_bytes(layout.options.window_rows)});
    if (layer.ratio == 0) continue;
    add_state_rows(ranges, layout, layer.ratio, layer.compressor_offset,
                   layer.ratio == 4 ? layout.compressor_width4 : layout.compressor_width128, position);
    if (layer.ratio == 4)
      add_state_rows(ranges, layout, 4, layer.index_compressor_offset, layout.index_compressor_width,
                     position);
  }
  std::vector<SlotRange> merged;
  for (const SlotRange& range : ranges) {
    if (!merged.empty()) {
      SlotRange& last = merged.back();
      if (range.offset - (last.offset + last.bytes) <= kMergeGapBytes) {
        last.bytes = range.offset + range.bytes - last.offset;
        continue;
      }
    }
    merged.push_back(range);
  }
  return merged;
}

std::shared_ptr<const StateImage> StateImage::capture(const SequenceState& sequence,
                                                      std::span<const float> logits) {
  CachePool& pool = sequence.pool();
  std::shared_ptr<StateImage> image(new StateImage(pool));
  image->position_ = sequence.position();
  image->logits_.assign(logits.begin(), logits.end());
  for (PagePool kind : kPools) {
    const std::span<const std::int32_t> ids = sequence.pages(kind);
    // reserve() may have taken pages ahead of the position; the image holds only what its position has.
    const auto count = static_cast<std::size_t>(pool.layout().pages_for(kind, image->position_));
    PIVOT_CHECK(ids.size() >= count, "{} of {} {} pages", ids.size(), count, to_string(kind));
    auto& pages = image->pages_[static_cast<std::size_t>(kind)];
    pages.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
    for (std::int32_t id : pages) pool.retain_page(kind, PageId{id}, PageOwner::kCache);
  }
  const std::vector<SlotRange> ranges = slot_ranges(pool.layout(), image->position_);
  std::int64_t total = 0;
  for (const SlotRange& range : ranges) total += range.bytes;
  image->fixed_.resize(static_cast<std::size_t>(total));
  std::byte* host = image->fixed_.data();
  for (const SlotRange& range : ranges) {
    pool.backend().download(host, pool.slot_data(sequence.slot()) + range.offset, range.bytes);
    host += range.bytes;
  }
  return image;
}

StateImage::~StateImage() {
  for (PagePool kind : kPools)
    for (std::int32_t id : pages_[static_cast<std::size_t>(kind)])
      pool_.release_page(kind, PageId{id}, PageOwner::kCache);
}

std::int64_t StateImage::host_bytes() const {
  return static_cast<std::int64_t>(sizeof(StateImage) + fixed_.size() + logits_.size() * sizeof(float) +
                                   (pages_[0].size() + pages_[1].size()) * sizeof(std::int32_t));
}

void StateImage::copy_fixed(std::span<std::byte> slot) const {
  const std::byte* from = fixed_.data();
  for (const SlotRange& range : slot_ranges(pool_.layout(), position_)) {
    std::memcpy(slot.data() + range.offset, from, static_cast<std::size_t>(range.bytes));
    from += range.bytes;
  }
}

void StateImage::restore(SequenceState& sequence, std::span<const TokenId> tokens) const {
  PIVOT_CHECK(&sequence.pool() == &pool_ && static_cast<std::int64_t>(tokens.size()) == position_,
              "{} tokens for position {}", tokens.size(), position_);
  sequence.attach(tokens, pages(PagePool::kRatio4), pages(PagePool::kRatio128));
  const std::byte* host = fixed_.data();
  for (const SlotRange& range : slot_ranges(pool_.layout(), position_)) {
    pool_.backend().upload(pool_.slot_data(sequence.slot()) + range.offset, host, range.bytes);
    host += range.bytes;
  }
}

}  // namespace pivot
