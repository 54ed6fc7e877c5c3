// Temporary memory of one op: taken in pieces, given back all at once, and kept for the next op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pivot::simd {

class Scratch {
 public:
  // Uninitialised, 64-byte aligned, valid until reset(). Not thread-safe: take before going parallel.
  template <class T>
  T* take(std::int64_t count) {
    return reinterpret_cast<T*>(take_bytes(count * static_cast<std::int64_t>(sizeof(T))));
  }
  // Frees everything taken. Blocks are merged into one, so that a steady state allocates nothing.
  void reset();
  // What is taken after mark() is freed by release() of it; for loops that need the same space again.
  struct Mark {
    std::size_t block = 0;
    std::int64_t used = 0;
  };
  Mark mark() const;
  void release(const Mark& mark);
  std::int64_t capacity_bytes() const;

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    std::int64_t bytes = 0;
    std::int64_t used = 0;
  };
  std::byte* take_bytes(std::int64_t bytes);

  std::vector<Block> blocks_;
  std::size_t current_ = 0;  // the block that is being filled; later ones are empty
};

}  // namespace pivot::simd
