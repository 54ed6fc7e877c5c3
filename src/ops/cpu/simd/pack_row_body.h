// A pack of one row: eight lanes, the width of AVX2 and of the portable vectors. Included after vec_avx2.h or
// vec_portable.h.
//
// A pack holds the 8 lanes of kPackRows rows side by side. The multiply loops are written on packs, so that a
// wider register takes more rows at a time and every single sum keeps its order.
#pragma once

namespace {

constexpr std::int64_t kPackRows = 1;
using Pack = Vec;
using PackBits = Bits;

PIVOT_INLINE Pack pack_zero() { return zero(); }
PIVOT_INLINE Pack pack_splat(float x) { return splat(x); }
// [kPackRows][8] floats.
PIVOT_INLINE Pack pack_load(const float* p) { return load(p); }
PIVOT_INLINE Pack pack_load_once(const float* p) { return load_once(p); }
PIVOT_INLINE void pack_store(float* p, Pack a) { store(p, a); }
// Eight floats of each row, `stride` floats apart.
PIVOT_INLINE Pack pack_gather(const float* p, std::int64_t) { return load(p); }
// The same eight floats for every row.
PIVOT_INLINE Pack pack_repeat(const float* p) { return load(p); }
PIVOT_INLINE Pack pack_repeat_once(const float* p) { return load_once(p); }
PIVOT_INLINE Pack pack_add(Pack a, Pack b) { return a + b; }
PIVOT_INLINE Pack pack_multiply(Pack a, Pack b) { return a * b; }
PIVOT_INLINE Pack pack_fma(Pack a, Pack b, Pack c) { return fma(a, b, c); }
// Zero below zero; NaN stays.
PIVOT_INLINE Pack pack_relu(Pack a) { return max_or_second(zero(), a); }
PIVOT_INLINE Pack pack_to_float(PackBits a) { return to_float(a); }
// From and to the vectors of the single rows.
PIVOT_INLINE Pack pack_join(const Vec* rows) { return rows[0]; }
PIVOT_INLINE void pack_split(Pack a, Vec* rows) { rows[0] = a; }

}  // namespace
