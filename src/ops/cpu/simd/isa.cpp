#include "ops/cpu/simd/isa.h"

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace pivot::simd {

#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif
extern const Kernels kPortableKernels;

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512})
    if (to_string(isa) == name) return isa;
  return std::nullopt;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas{Isa::kPortable};
#if defined(__x86_64__)
  // The builtins also ask the operating system whether it saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) isas.push_back(Isa::kAvx2);
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni"))
    isas.push_back(Isa::kAvx512);
#endif
  return isas;
}

const Kernels& kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return kAvx2Kernels;
  if (isa == Isa::kAvx512) return kAvx512Kernels;
#endif
  PIVOT_CHECK(isa == Isa::kPortable, "{}", to_string(isa));
  return kPortableKernels;
}

Result<Isa> choose_isa() {
  const std::vector<Isa> isas = supported_isas();
  const char* forced = std::getenv("PIVOT_CPU_ISA");
  if (forced == nullptr || *forced == '\0') return isas.back();
  std::string possible;
  for (const Isa isa : isas) {
    if (to_string(isa) == forced) return isa;
    possible += possible.empty() ? "" : ", ";
    possible += to_string(isa);
  }
  if (parse_isa(forced))
    return fail(ErrorCode::kUnsupported,
                "PIVOT_CPU_ISA asks for {}, which this CPU cannot run; unset it or choose from: {}", forced,
                possible);
  return fail(ErrorCode::kInvalidArgument,
              "PIVOT_CPU_ISA is '{}', which names no instruction set; choose from: {}", forced, possible);
}

std::vector<std::string> describe_choice(Isa chosen, const std::vector<Isa>& supported, int num_threads,
                                         int usable_cores) {
  std::vector<std::string> lines = {fmt::format("CPU kernels: {}, {} thread(s) on {} usable core(s)",
                                                to_string(chosen),
                                                num_threads == 0 ? usable_cores : num_threads, usable_cores)};
  if (supported.back() == Isa::kPortable)
    lines.push_back(
        "this CPU has no AVX2 with FMA: the portable kernels give the same answers several times slower; "
        "use a CPU with AVX2 or AVX-512 for speed");
  if (num_threads > usable_cores)
    lines.push_back(
        fmt::format("{} threads were asked for and this process may use {} core(s): threads will wait for "
                    "each other; ask for at most {}",
                    num_threads, usable_cores, usable_cores));
  return lines;
}

}  // namespace pivot::simd
