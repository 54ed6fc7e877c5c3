#include "ops/cpu/simd/isa.h"

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace pivot::simd {

#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
#endif
extern const Kernels kPortableKernels;

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
  }
  return "unknown";
}

std::optional<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2})
    if (to_string(isa) == name) return isa;
  return std::nullopt;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas{Isa::kPortable};
#if defined(__x86_64__)
  // The builtins also ask the operating system whether it saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isas.push_back(Isa::kAvx2);
#endif
  return isas;
}

const Kernels& kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return kAvx2Kernels;
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

}  // namespace pivot::simd
