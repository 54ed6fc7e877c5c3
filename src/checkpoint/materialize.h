// Turns stored tensors into what the model computes with: matrices as views, vectors widened to fp32, id
// tables checked. Every value that would poison a result later (NaN scales, NaN vectors, wrong ids) is
// refused here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_weights.h"
#include "checkpoint/problems.h"

namespace pivot {

// Memory for widened vectors and realigned copies, freed all at once. Blocks are aligned to 64 bytes.
class WeightArena {
 public:
  std::span<std::byte> allocate(std::size_t bytes);
  template <class T>
  std::span<T> allocate_values(std::size_t count) {
    const auto bytes = allocate(count * sizeof(T));
    return {reinterpret_cast<T*>(bytes.data()), count};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::vector<std::unique_ptr<std::byte, Free>> chunks_;
  std::span<std::byte> rest_;  // of the last chunk
};

// Index of the first NaN code (E8M0 0xff, E4M3 0x7f or 0xff, F32 not finite) in `scales`; nullopt if there is
// none.
std::optional<std::uint64_t> find_bad_scale(ScaleFormat format, std::span<const std::byte> scales);

class Materializer {
 public:
  Materializer(const Checkpoint& checkpoint, WeightArena& arena, Problems& problems, bool check_scales)
      : checkpoint_(checkpoint), arena_(arena), problems_(problems), check_scales_(check_scales) {}

  Matrix matrix(const StoredTensor& tensor);
  FloatSpan vector(const StoredTensor& tensor);  // BF16 or F32, every value finite
  // [V, K] ids below `num_experts`, none twice in a row (specification Q11: it would count an expert twice).
  std::span<const std::int32_t> id_table(const StoredTensor& tensor, std::int64_t num_experts);

  // Bytes of the mapping that were read so far.
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  std::span<const std::byte> bytes_of(const TensorInfo& part, std::uint64_t offset, std::uint64_t size) const;
  const std::byte* aligned(std::span<const std::byte> bytes, std::size_t width);
  void check_scales(const StoredTensor& tensor, std::span<const std::byte> scales);
  float scalar(const TensorInfo& part);
  std::string where(const TensorInfo& part) const;

  const Checkpoint& checkpoint_;
  WeightArena& arena_;
  Problems& problems_;
  bool check_scales_;
  std::uint64_t bytes_read_ = 0;
};

// Every value of `values` is BF16-representable (specification Q3).
bool all_bf16(FloatSpan values);

}  // namespace pivot
