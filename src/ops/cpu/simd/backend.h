// The fast CPU back-end: the oracle's semantics in blocked, vectorised, threaded loops.
//
// Quantised values, codes, cached bytes and selections equal the oracle's given equal inputs; sums differ
// from it by the rounding of their order. Like the oracle's, a result depends on nothing but a sequence's own
// tokens: not on chunk sizes, on what else is in the batch, or on num_threads. It does depend on the
// instruction set.
#pragma once

#include <memory>

#include "ops/cpu/simd/isa.h"
#include "ops/ops.h"

namespace pivot {

// Name "cpu". num_threads counts the calling thread; 0 means one per usable core. The instruction set is the
// fastest that this CPU runs, or what PIVOT_CPU_ISA names; a name that cannot be used is reported by
// supports(). Not thread-safe: one step at a time.
std::unique_ptr<Backend> make_simd_backend(int num_threads);
// With a given instruction set, for tests. REQUIRES: one of simd::supported_isas().
std::unique_ptr<Backend> make_simd_backend(int num_threads, simd::Isa isa);

}  // namespace pivot
