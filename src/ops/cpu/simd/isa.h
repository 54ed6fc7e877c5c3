// The instruction sets this binary carries CPU kernels for, and the choice among them, made once per process.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/cpu/simd/kernels.h"

namespace pivot::simd {

enum class Isa { kPortable, kAvx2, kAvx512 };  // kAvx512: F, BW, DQ, VL and VNNI

// "portable", "avx2", "avx512".
std::string_view to_string(Isa isa);
std::optional<Isa> parse_isa(std::string_view name);
// What this CPU and operating system can run, slowest first; never empty.
std::vector<Isa> supported_isas();
// The kernels of one instruction set. REQUIRES: supported on this machine.
const Kernels& kernels(Isa isa);
// The fastest supported set, or the one that environment variable PIVOT_CPU_ISA names. A name that is unknown
// or that this CPU cannot run is an error.
Result<Isa> choose_isa();
// What to say of it, a line each: the choice ("CPU kernels: ..."), then warnings. `num_threads` as asked for,
// 0: one per core.
std::vector<std::string> describe_choice(Isa chosen, const std::vector<Isa>& supported, int num_threads,
                                         int usable_cores);

}  // namespace pivot::simd
