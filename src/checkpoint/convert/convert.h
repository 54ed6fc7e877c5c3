// Conversion of a checkpoint's routed experts to another storage format, everything else copied byte by byte.
//
// The source is only read. The output folder grows shard by shard under temporary names; a journal remembers
// finished shards, so that a killed run resumes; the files that make a folder look like a checkpoint
// (config.json, the index) are written last.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/identify.h"

namespace pivot {

enum class ExpertTarget : std::uint8_t { kNative, kNvfp4, kFp8, kBf16 };
const char* to_string(ExpertTarget target);  // "native", "nvfp4", "fp8", "bf16"
ExpertFormat format_of(ExpertTarget target);

struct ConvertOptions {
  ExpertTarget experts = ExpertTarget::kNative;
  bool draft_experts = false;   // convert mtp.* experts too; ModelOpt leaves them native (specification 4.3)
  bool allow_rounding = false;  // where the target cannot hold every value exactly
  int threads = 2;              // shards at a time
  const Checkpoint* input_scales =
      nullptr;  // NVFP4: take input_scale from this checkpoint instead of kUncalibratedInputScale
  const std::atomic<bool>* stop =
      nullptr;  // polled between tensors; set: kCancelled, and the next run resumes
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>
      progress;  // bytes written, one call at a time
};

// The activation scale of an NVFP4 expert without calibration: blocks with an absolute maximum of 0.1 to 2688
// keep a normal E4M3 scale. Engines that run FP8 or BF16 activations never read it.
inline constexpr float kUncalibratedInputScale = 1.0f;

struct ConvertReport {
  std::int64_t matrices = 0;  // converted
  std::int64_t copied_tensors = 0;
  std::int64_t rounded_values = 0;  // 0: lossless
  std::string rounded_example;
  std::uint64_t bytes_written = 0;  // by this run
  int shards = 0;
  int shards_resumed = 0;  // finished by an earlier run
  bool calibrated_input_scales = false;
  double seconds = 0;
};

// What the conversion would write, before anything is written.
struct ConvertPlan {
  std::uint64_t output_bytes = 0;     // all shards
  std::uint64_t remaining_bytes = 0;  // what a resumed run still has to write
  std::uint64_t free_bytes = 0;
};
Result<ConvertPlan> plan_conversion(const Checkpoint& source, const std::filesystem::path& output,
                                    const ConvertOptions& options);

// Errors: kInvalidArgument for an output folder that is the source, lies inside it, or holds something else;
// kCannotCreate for a disk that is too full, now or on the way; kUnsupported where the target cannot hold the
// values (nothing half-made remains visible). After an error the same call resumes.
Result<ConvertReport> convert_checkpoint(const Checkpoint& source, const std::filesystem::path& output,
                                         const ConvertOptions& options);

}  // namespace pivot
