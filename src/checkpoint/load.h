// From a checkpoint on disk to ModelWeights: every stored tensor bound exactly once, or an Error that names
// all that is wrong. Matrices stay in the mapping; small vectors are widened to fp32.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_weights.h"

namespace pivot {

struct LoadProgress {
  std::uint64_t done_bytes = 0;  // of the bytes that loading reads (scales, vectors, tables)
  std::uint64_t total_bytes = 0;
};

struct LoadOptions {
  std::function<void(const LoadProgress&)> progress;  // called from the loading thread, often
  bool draft = true;  // bind mtp.* too where the checkpoint has it; otherwise those tensors are left unread
  bool check_scales = true;  // look for NaN codes in every block scale (touches scale bytes only)
};

// Resident memory afterwards: the widened vectors; pages read on the way are handed back.
Result<std::shared_ptr<const ModelWeights>> load_model(std::string_view path_or_name,
                                                       const LoadOptions& options = {});
Result<std::shared_ptr<const ModelWeights>> load_model(const Checkpoint& checkpoint,
                                                       const LoadOptions& options = {});

}  // namespace pivot
