// The AVX-512 kernels on a CPU without AVX-512: SIMDe stands in for each instruction, so that their table
// goes through every test that the other tables go through.
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

// What SIMDe 0.7.4 leaves out, by halves.
namespace {

inline __m256i half_of(__m512i a, int half) {
  __m256i halves[2];
  static_assert(sizeof(halves) == sizeof(a));
  __builtin_memcpy(halves, &a, sizeof(halves));
  return halves[half];
}
inline __m512i of_halves(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
inline __m512 convert_halves(__m512i a) {
  const auto convert = [&](int half) { return _mm256_castps_si256(_mm256_cvtepi32_ps(half_of(a, half))); };
  return _mm512_castsi512_ps(of_halves(convert(0), convert(1)));
}
template <int kCount>
inline __m512i shift_halves(__m512i a) {
  return of_halves(_mm256_srai_epi32(half_of(a, 0), kCount), _mm256_srai_epi32(half_of(a, 1), kCount));
}

}  // namespace
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(a) convert_halves(a)
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(a, count) shift_halves<count>(a)
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, half) _mm256_castsi256_ps(half_of(_mm512_castps_si512(a), half))
// Its alias is that of the masked form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

#include "ops/cpu/simd/pack_avx512.h"
// The bodies are written on the packs above.
#include "ops/cpu/simd/table_body.h"

namespace pivot::simd {
extern const Kernels kEmulatedAvx512Kernels;
const Kernels kEmulatedAvx512Kernels = kTable;
}  // namespace pivot::simd
