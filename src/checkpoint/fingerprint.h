// One number for a checkpoint's content: inspection prints it, a server of the same files reports it.
#pragma once

#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"

namespace pivot {

// Hash of every tensor's name, dtype and shape in name order, and of samples of its bytes: small tensors
// whole, of larger ones three stretches (one of the scales of routed experts). Codes of routed experts other
// than the first are left out, because each sample would read a page of a file that loading otherwise does
// not touch; their scales are in. REQUIRES: `layout` was resolved from checkpoint.table().
std::uint64_t checkpoint_fingerprint(const Checkpoint& checkpoint, const ModelLayout& layout);

}  // namespace pivot
