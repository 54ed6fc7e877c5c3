#include "cache/sequence_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pivot {
namespace {

constexpr PagePool kPools[] = {PagePool::kRatio4, PagePool::kRatio128};

// A table row is at least one entry long, so that a pool without pages has an address too.
std::int32_t table_stride(const CacheLayout& layout, PagePool pool, std::int64_t max_tokens) {
  return static_cast<std::int32_t>(std::max<std::int64_t>(1, layout.pages_for(pool, max_tokens)));
}

}  // namespace

std::int64_t first_window_row(std::int64_t position, std::int64_t sliding_window) {
  return std::max<std::int64_t>(0, position - (sliding_window - 1));
}

std::int64_t first_state_row(std::int64_t position, int ratio) {
  const std::int64_t block = position - position % ratio;
  // Ratio 4: the next entry also pools series A of the block before.
  if (ratio == 4) return std::max<std::int64_t>(0, block - 4);
  return block;
}

Result<std::unique_ptr<SequenceState>> SequenceState::create(std::shared_ptr<CachePool> pool) {
  PIVOT_TRY(const std::int32_t slot, pool->acquire_slot());
  return std::unique_ptr<SequenceState>(new SequenceState(std::move(pool), slot));
}

SequenceState::~SequenceState() {
  rewind_bookkeeping(0);
  pool_->release_slot(slot_);
}

Result<> SequenceState::make_private(PagePool pool, std::size_t index) {
  std::int32_t& id = pages_[static_cast<std::size_t>(pool)][index];
  if (pool_->pages(pool).references(id) == 1) return {};
  PIVOT_TRY(const PageId copy, pool_->acquire_page(pool));
  std::vector<std::byte> bytes(static_cast<std::size_t>(pool_->layout().page_bytes[static_cast<int>(pool)]));
  const auto size = static_cast<std::int64_t>(bytes.size());
  pool_->backend().download(bytes.data(), pool_->page_data(pool, PageId{id}), size);
  pool_->backend().upload(pool_->page_data(pool, copy), bytes.data(), size);
  pool_->release_page(pool, PageId{id});
  id = raw(copy);
  return {};
}

Result<> SequenceState::reserve(std::int64_t num_tokens) {
  const CacheLayout& layout = pool_->layout();
  std::size_t before[kNumPagePools];
  for (PagePool pool : kPools)
    before[static_cast<std::size_t>(pool)] = pages_[static_cast<std::size_t>(pool)].size();
  const auto undo = [&] {
    for (PagePool pool : kPools) {
      auto& pages = pages_[static_cast<std::size_t>(pool)];
      for (; pages.size() > before[static_cast<std::size_t>(pool)]; pages.pop_back())
        pool_->release_page(pool, PageId{pages.back()});
    }
  };
  for (PagePool pool : kPools) {
    auto& pages = pages_[static_cast<std::size_t>(pool)];
    const auto wanted = static_cast<std::size_t>(layout.pages_for(pool, position() + num_tokens));
    while (pages.size() < wanted) {
      Result<PageId> page = pool_->acquire_page(pool);
      if (!page) {
        undo();
        return fail(std::move(page).error());
      }
      pages.push_back(raw(*page));
    }
  }
  // Entries from position/ratio on will be written: those pages must not be anybody else's.
  for (PagePool pool : kPools) {
    const auto first = static_cast<std::size_t>(position() / pool_ratio(pool) / layout.page_rows(pool));
    for (std::size_t i = first; i < before[static_cast<std::size_t>(pool)]; ++i) {
      Result<> result = make_private(pool, i);
      if (!result) {
        undo();
        return result;
      }
    }
  }
  return {};
}

void SequenceState::attach(std::span<const TokenId> tokens, std::span<const std::int32_t> ratio4_pages,
                           std::span<const std::int32_t> ratio128_pages) {
  PIVOT_CHECK(position() == 0 && pages_[0].empty() && pages_[1].empty(), "position {}", position());
  for (PagePool pool : kPools) {
    const std::span<const std::int32_t> ids = pool == PagePool::kRatio4 ? ratio4_pages : ratio128_pages;
    const std::int64_t wanted = pool_->layout().pages_for(pool, static_cast<std::int64_t>(tokens.size()));
    PIVOT_CHECK(static_cast<std::int64_t>(ids.size()) == wanted, "{} {} pages for {} tokens, {} wanted",
                ids.size(), to_string(pool), tokens.size(), wanted);
    for (std::int32_t id : ids) pool_->retain_page(pool, PageId{id});
    pages_[static_cast<std::size_t>(pool)].assign(ids.begin(), ids.end());
  }
  tokens_.assign(tokens.begin(), tokens.end());
  mark_restored();
}

void SequenceState::mark_restored() { written_ = restored_ = position(); }

void SequenceState::append(std::span<const TokenId> ids) {
  for (PagePool pool : kPools) {
    const std::int64_t wanted =
        pool_->layout().pages_for(pool, position() + static_cast<std::int64_t>(ids.size()));
    PIVOT_CHECK(static_cast<std::int64_t>(pages(pool).size()) >= wanted, "{} pages: {} of {}",
                to_string(pool), pages(pool).size(), wanted);
  }
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  written_ = std::max(written_, position());
}

bool SequenceState::can_truncate(std::int64_t num_tokens) const {
  if (num_tokens < 0 || num_tokens > position()) return false;
  if (num_tokens == 0 || num_tokens == position()) return true;
  if (num_tokens < restored_) return false;
  const CacheLayout& layout = pool_->layout();
  if (first_window_row(num_tokens, layout.sliding_window) < written_ - layout.options.window_rows)
    return false;
  for (const LayerLayout& layer : layout.layers) {
    if (layer.ratio == 0) continue;
    const std::int64_t first = first_state_row(num_tokens, layer.ratio);
    if (first < num_tokens && first < written_ - layout.state_rows(layer.ratio)) return false;
  }
  return true;
}

Result<> SequenceState::truncate(std::int64_t num_tokens) {
  if (!can_truncate(num_tokens))
    return fail(ErrorCode::kUnsupported,
                "a sequence of {} tokens cannot be cut to {}: the rings no longer hold the rows before that "
                "position; "
                "restore a snapshot or compute the tokens again",
                position(), num_tokens);
  const std::int64_t written = num_tokens == 0 ? 0 : written_;
  rewind_bookkeeping(num_tokens);
  written_ = written;
  return {};
}

void SequenceState::rewind_bookkeeping(std::int64_t num_tokens) {
  PIVOT_CHECK(num_tokens >= 0 && num_tokens <= position(), "{} of {}", num_tokens, position());
  for (PagePool pool : kPools) {
    auto& pages = pages_[static_cast<std::size_t>(pool)];
    const auto kept = static_cast<std::size_t>(pool_->layout().pages_for(pool, num_tokens));
    for (; pages.size() > kept; pages.pop_back()) pool_->release_page(pool, PageId{pages.back()});
  }
  tokens_.resize(static_cast<std::size_t>(num_tokens));
  written_ = num_tokens;
  restored_ = std::min(restored_, num_tokens);
}

Result<std::unique_ptr<PageTables>> PageTables::create(std::shared_ptr<Backend> backend,
                                                       const CacheLayout& layout, std::int32_t max_sequences,
                                                       std::int64_t max_tokens) {
  std::unique_ptr<PageTables> tables(new PageTables(std::move(backend), max_sequences));
  for (PagePool pool : kPools) {
    const int i = static_cast<int>(pool);
    tables->stride_[i] = table_stride(layout, pool, max_tokens);
    tables->host_[i].assign(
        static_cast<std::size_t>(max_sequences) * static_cast<std::size_t>(tables->stride_[i]), 0);
    const auto bytes = static_cast<std::int64_t>(tables->host_[i].size() * sizeof(std::int32_t));
    PIVOT_TRY(std::byte * memory, tables->backend_->allocate(bytes, "page tables"));
    tables->device_[i] = reinterpret_cast<std::int32_t*>(memory);
  }
  return tables;
}

PageTables::~PageTables() {
  for (std::int32_t* memory : device_)
    if (memory != nullptr) backend_->release(reinterpret_cast<std::byte*>(memory));
}

void PageTables::upload(std::span<const SequenceState* const> sequences) {
  PIVOT_CHECK(sequences.size() <= static_cast<std::size_t>(max_sequences_), "{} of {}", sequences.size(),
              max_sequences_);
  for (PagePool pool : kPools) {
    const int i = static_cast<int>(pool);
    for (std::size_t row = 0; row < sequences.size(); ++row) {
      const std::span<const std::int32_t> pages = sequences[row]->pages(pool);
      PIVOT_CHECK(pages.size() <= static_cast<std::size_t>(stride_[i]), "{} of {}", pages.size(), stride_[i]);
      std::copy(pages.begin(), pages.end(),
                host_[i].begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(stride_[i])));
    }
    backend_->upload(device_[i], host_[i].data(),
                     static_cast<std::int64_t>(sequences.size()) * stride_[i] *
                         static_cast<std::int64_t>(sizeof(std::int32_t)));
  }
}

CachePool::Tables PageTables::tables() const {
  CachePool::Tables tables;
  for (int i = 0; i < kNumPagePools; ++i) {
    tables.ids[i] = device_[i];
    tables.stride[i] = stride_[i];
  }
  return tables;
}

std::int64_t PageTables::allocated_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& host : host_) bytes += static_cast<std::int64_t>(host.size() * sizeof(std::int32_t));
  return bytes;
}

std::int64_t PageTables::planned_bytes(const CacheLayout& layout, std::int32_t max_sequences,
                                       std::int64_t max_tokens) {
  std::int64_t bytes = 0;
  for (PagePool pool : kPools)
    bytes += std::int64_t{max_sequences} * table_stride(layout, pool, max_tokens) *
             static_cast<std::int64_t>(sizeof(std::int32_t));
  return bytes;
}

}  // namespace pivot
