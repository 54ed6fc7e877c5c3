// Produces the bytes of one output tensor from parts of the source that a ReadAhead brings, in pieces of
// bounded size.
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/read_ahead.h"
#include "checkpoint/convert/shard_plan.h"

namespace pivot {

using ByteSink = std::function<Result<>(std::span<const std::byte>)>;

// Codes of a joint matrix, kept from its scales' turn until their own comes.
struct JointCodes {
  const StoredTensor* matrix = nullptr;
  std::vector<std::uint8_t> bytes;
};

class Encoder {
 public:
  // Everything passed in must outlive the encoder. Thread-safe.
  Encoder(const Checkpoint& source, const ModelLayout& layout, const ConvertOptions& options);

  // The reads that a tensor needs, in order; encode() is called once per job with its bytes. One empty job
  // where none is needed.
  std::vector<ReadJob> jobs(const OutputTensor& tensor) const;
  // `kept` belongs to the shard that is being written.
  Result<> encode(const OutputTensor& tensor, const ReadAhead::Loaded& loaded, JointCodes& kept,
                  const ByteSink& sink);

  std::int64_t rounded_values() const { return rounded_values_; }
  const std::string& rounded_example() const { return rounded_example_; }

 private:
  ReadRange range_of(const TensorInfo& stored, std::uint64_t offset, std::uint64_t bytes) const;
  // The matrix with its parts in the mapping, except for those given.
  Matrix matrix_of(const StoredTensor& tensor, std::span<const std::byte> codes = {},
                   std::span<const std::byte> scales = {}) const;
  Result<> codes(const StoredTensor& tensor, const Matrix& matrix, const ByteSink& sink);
  Result<> scales(const StoredTensor& tensor, const Matrix& matrix, const ByteSink& sink);
  // Makes both, writes the scales and keeps the codes.
  Result<> both(const StoredTensor& tensor, const Matrix& matrix, JointCodes& kept, const ByteSink& sink);
  Result<> input_scale(const StoredTensor& tensor, const ByteSink& sink);
  // The exponent that w1 and w3 of an expert share, or w2's own (specification 4.3); 0 where all codes are
  // zero.
  Result<int> shared_exponent(const StoredTensor& tensor);
  Result<> note_rounding(const StoredTensor& tensor, std::int64_t rounded);

  const Checkpoint& source_;
  const ConvertOptions& options_;
  std::unordered_map<std::string_view, const StoredTensor*> by_name_;
  std::mutex mutex_;
  std::unordered_map<std::string, int> exponents_;  // by stem of the pair's w1, or of w2
  std::int64_t rounded_values_ = 0;
  std::string rounded_example_;
};

}  // namespace pivot
