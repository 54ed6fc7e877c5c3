// Comparison of two checkpoints, tensor by tensor, in bounded memory at the speed of the disk.
//
// Logical tensors are compared (a matrix with its scales), whatever format and naming style each side uses,
// so a native checkpoint and its NVFP4 cast meet name by name.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/diff/compare.h"
#include "checkpoint/modules/modules.h"

namespace pivot {

enum class Difference : std::uint8_t {
  kIdentical,    // every byte
  kReencoded,    // every value, stored in other bytes
  kOtherScales,  // the same codes under scales that give other values
  kRequantised,  // other codes, of quantised matrices
  kOtherValues,  // other values of a tensor that is not quantised
  kOtherShape,
  kOnlyA,
  kOnlyB,
  kNotReached,  // the comparison was stopped before
};
inline constexpr int kNumDifferences = 9;
const char* to_string(Difference difference);  // "byte-identical", "same values, scales re-encoded", ...
// The two sides compute the same thing.
bool same_values(Difference difference);

struct TensorDifference {
  std::string name;  // native
  Module module = Module::kNorm;
  bool draft = false;
  std::int32_t block = -1;
  std::int32_t expert = -1;
  Difference difference = Difference::kNotReached;
  std::string stored_a;  // "FP4", "NVFP4", "F32 [24, 16384]"
  std::string stored_b;
  ErrorSums sums;
};

// The tensors of one module of one block, or of a whole module.
struct DifferenceGroup {
  Module module = Module::kNorm;
  bool draft = false;
  std::int32_t block = -1;  // -1: the module as a whole
  std::array<std::int64_t, kNumDifferences> counts{};
  ErrorSums sums;     // of the tensors whose values were compared
  std::string worst;  // the tensor with the largest relative error
  double worst_relative_error = 0;
  std::int64_t tensors() const;
  bool same() const;  // nothing but byte-identical and re-encoded tensors
};

struct DiffReport {
  std::string label_a;
  std::string label_b;
  std::vector<TensorDifference> tensors;  // A's file order, then those of B alone
  std::vector<DifferenceGroup> modules;   // backbone then draft
  std::vector<DifferenceGroup> blocks;    // module by block
  std::array<std::int64_t, kNumDifferences> counts{};
  bool complete = true;  // false: stopped by the caller
  std::int64_t other_input_scales =
      0;  // NVFP4 matrices on both sides whose activation scale differs (W4A4 only)
  std::uint64_t bytes_read = 0;
  double seconds = 0;
  bool same() const;
  std::string verdict() const;  // one sentence
};

struct DiffOptions {
  int threads = 2;
  const std::atomic<bool>* stop = nullptr;  // polled between parts; set: the report covers what was reached
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>
      progress;  // from worker threads, one at a time
};

// Both checkpoints must be sound (their layouts must resolve); the error names the side and every fault.
Result<DiffReport> diff_checkpoints(const Checkpoint& a, const Checkpoint& b, const std::string& label_a,
                                    const std::string& label_b, const DiffOptions& options = {});

}  // namespace pivot
