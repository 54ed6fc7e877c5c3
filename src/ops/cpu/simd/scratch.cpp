#include "ops/cpu/simd/scratch.h"

#include <algorithm>
#include <new>

namespace pivot::simd {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kSmallestBlock = std::int64_t{1} << 20;

}  // namespace

void Scratch::Free::operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }

std::byte* Scratch::take_bytes(std::int64_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (current_ < blocks_.size() && blocks_[current_].used + bytes > blocks_[current_].bytes) ++current_;
  if (current_ == blocks_.size()) {
    const std::int64_t size = std::max({bytes, kSmallestBlock, capacity_bytes() / 2});
    auto* memory = static_cast<std::byte*>(::operator new (
        static_cast<std::size_t>(size), std::align_val_t{static_cast<std::size_t>(kAlignment)}));
    blocks_.push_back({std::unique_ptr<std::byte, Free>(memory), size, 0});
  }
  Block& block = blocks_[current_];
  std::byte* result = block.memory.get() + block.used;
  block.used += bytes;
  return result;
}

void Scratch::reset() {
  if (blocks_.size() > 1) {
    const std::int64_t total = capacity_bytes();
    blocks_.clear();
    current_ = 0;
    take_bytes(total);
  }
  release({});
}

Scratch::Mark Scratch::mark() const {
  return {current_, current_ < blocks_.size() ? blocks_[current_].used : 0};
}

void Scratch::release(const Mark& mark) {
  for (std::size_t i = mark.block; i < blocks_.size(); ++i) blocks_[i].used = i == mark.block ? mark.used : 0;
  current_ = mark.block;
}

std::int64_t Scratch::capacity_bytes() const {
  std::int64_t total = 0;
  for (const Block& block : blocks_) total += block.bytes;
  return total;
}

}  // namespace pivot::simd
