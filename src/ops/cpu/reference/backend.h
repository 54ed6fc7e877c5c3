// The oracle: every op as the literal sequence of the specification's steps and rounding points, in plain
// loops.
//
// Results depend on nothing but a sequence's own tokens: not on chunk sizes, on what else is in the batch, or
// on num_threads (threads split independent outputs).
#pragma once

#include <memory>

#include "ops/ops.h"

namespace pivot {

// Name "cpu-reference". num_threads counts the calling thread; 0 means one per usable core.
std::unique_ptr<Backend> make_reference_backend(int num_threads = 1);

}  // namespace pivot
