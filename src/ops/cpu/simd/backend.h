// The fast CPU back-end: the oracle's semantics in blocked, vectorised, threaded loops.
//
// Quantised values, codes, cached bytes and selections equal the oracle's given equal inputs; sums differ
// from it by the rounding of their order. Like the oracle's, a result depends on nothing but a sequence's own
// tokens: not on chunk sizes, on what else is in the batch, or on num_threads. It does depend on the
// instruction set.
#pragma once

#include <memory>
#include <string_view>

#include "ops/cpu/simd/isa.h"
#include "ops/ops.h"

namespace pivot {

// Name "cpu". num_threads counts the calling thread; 0 means one per usable core. The instruction set is the
// fastest that this CPU runs, or what PIVOT_CPU_ISA names; a name that cannot be used is reported by
// supports(). The first call of the process logs the choice, and warns where the CPU has no AVX2 or fewer
// cores than asked for. Not thread-safe: one step at a time.
std::unique_ptr<Backend> make_simd_backend(int num_threads);
// With a given instruction set, for tests. REQUIRES: one of simd::supported_isas().
std::unique_ptr<Backend> make_simd_backend(int num_threads, simd::Isa isa);
// With a table of kernels that no Isa stands for (a test's), called `instructions` in device().
std::unique_ptr<Backend> make_simd_backend(int num_threads, const simd::Kernels& kernels,
                                           std::string_view instructions);

}  // namespace pivot
