// Laboratory: one token times FP4, NVFP4, FP8 and BF16 weights, against the read bandwidth of the same run.
//
//   g++ -std=c++20 -O3 -mavx2 -mfma -ffp-contract=off -pthread gemv.cpp -o gemv && ./gemv [MIB] [PASSES]
//   [FORMAT]
//
// Weights are one tall matrix of 4096 columns that fits no cache. Ideas, in order:
//  0. read:    the same bytes, only loaded.
//  1. floats:  codes to fp32 in registers, several rows side by side, one multiply-add a vector (FP4: two
//  byte
//              tables give BF16 patterns). An FP4 chunk of 34 bytes takes 30 instructions.
//  2. digits:  FP4 by FP8 inputs in integers. An E4M3 code is an integer of 18 bits; its byte digits meet
//  2*E2M1
//              + 12 in byte multiplies, exactly; 22 instructions a chunk, two of them float. One row at a
//              time.
//  3. + prefetch of the stream, by distance.
//  4. digits of two rows side by side, which share the loads of the input.
//  5. FP8, BF16: 2, 4, 8 rows side by side, with and without prefetch.
//  6. FP8 with the weights' scales on the input: a block of columns ends with one addition.
//  7. FP8: each line once, a whole group of rows ahead ("L2": into that cache only), where a row's own stream
//     leaves the prefetcher of the hardware to start anew.
#include "bench.h"

namespace {

using namespace lab;
constexpr int kCols = 4096;

// kAhead bytes on; negative: into the L2 cache only.
template <int kAhead>
inline void prefetch(const std::uint8_t* p) {
  if constexpr (kAhead > 0) _mm_prefetch(reinterpret_cast<const char*>(p + kAhead), _MM_HINT_T0);
  if constexpr (kAhead < 0) _mm_prefetch(reinterpret_cast<const char*>(p - kAhead), _MM_HINT_T1);
}

// ---- inputs ----

struct alignas(64) Digits {
  std::int8_t digits[192];
  std::int32_t offset[8];
  float scale;
  std::int32_t is_short;
  float unused[6];
};

// Integers of E4M3 codes (units of 2^-9) of 64 columns to two digits to the base 256, or three to the base
// 128.
Digits digits_of(const int* numbers) {
  Digits d{};
  int all = 0;
  for (int i = 0; i < 64; ++i) all |= numbers[i];
  d.is_short = (all & 7) == 0;
  d.scale = d.is_short ? 0x1p-7f : 0x1p-10f;
  for (int i = 0; i < 64; ++i) {
    int n = d.is_short ? numbers[i] / 8 : numbers[i];
    d.offset[i / 8] += 12 * n;
    const int base = d.is_short ? 256 : 128;
    for (int digit = 0; digit < (d.is_short ? 2 : 3); ++digit) {
      const int low = ((n + base / 2) & (base - 1)) - base / 2;
      d.digits[64 * digit + 32 * (i % 2) + i / 2] = static_cast<std::int8_t>(low);
      n = (n - low) / base;
    }
  }
  return d;
}

// An E4M3 value of a random normal, in units of 2^-9.
int random_e4m3(Random& random) {
  const float x = random.normal() * 120.0f;
  const float a = std::min(448.0f, std::fabs(x));
  const int e = a < 0x1p-6f ? -6 : std::ilogb(a);
  const float step = std::ldexp(1.0f, e - 3);
  const float rounded = std::nearbyint(a / step) * step;
  return static_cast<int>((x < 0 ? -rounded : rounded) * 512.0f);
}

// ---- FP4 and NVFP4 ----

constexpr int kHalves[8] = {0, 1, 2, 3, 4, 6, 8, 12};  // 2*E2M1
float e2m1(unsigned code) {
  return 0.5f * static_cast<float>((code & 8) != 0 ? -kHalves[code & 7] : kHalves[code & 7]);
}

// Vector 4u+c, lane l: column 32*(l/4) + 16*u + 4*(l%4) + c.
inline void decode_floats(const std::uint8_t* p, __m256 out[8]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high_bytes =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41,
                                                -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i low_bytes =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00,
                                                0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40));
  const __m256i nibble = _mm256_set1_epi8(0x0f), top = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i codes[2] = {_mm256_and_si256(x, nibble), _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble)};
  __m256i pairs[2][2];
  for (int odd = 0; odd < 2; ++odd) {
    const __m256i high = _mm256_shuffle_epi8(high_bytes, codes[odd]);
    const __m256i low = _mm256_shuffle_epi8(low_bytes, codes[odd]);
    pairs[odd][0] = _mm256_unpacklo_epi8(low, high);
    pairs[odd][1] = _mm256_unpackhi_epi8(low, high);
  }
  for (int u = 0; u < 2; ++u)
    for (int odd = 0; odd < 2; ++odd) {
      out[4 * u + odd] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs[odd][u], 16));
      out[4 * u + 2 + odd] = _mm256_castsi256_ps(_mm256_and_si256(pairs[odd][u], top));
    }
}

inline void e8m0_two(const std::uint8_t* p, __m256 out[2]) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  const __m256i all = _mm256_set1_epi32(four);
  const __m256i first = _mm256_setr_epi8(0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1, -1,
                                         -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1);
  const __m256i second = _mm256_setr_epi8(2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 3, -1,
                                          -1, -1, 3, -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1);
  out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_shuffle_epi8(all, first), 23));
  out[1] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_shuffle_epi8(all, second), 23));
}
inline __m256 e4m3_four(const std::uint8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  const __m256i spread = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1,
                                          -1, 2, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 3);
  const __m256i top = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
  const __m256i keep = _mm256_set1_epi32(static_cast<int>(0x87f00000u));
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32(top, 4), keep)),
                       _mm256_set1_ps(0x1p+120f));
}

inline void decode_bytes(const std::uint8_t* p, __m256i out[2]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  out[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble));
  out[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
}

template <int kDigits, int kBase>
inline __m256 dot_digits(const __m256i w[2], const Digits& x) {
  __m256i sum = _mm256_setzero_si256();
  int weight = 1;
  for (int i = 0; i < kDigits; ++i, weight *= kBase) {
    const __m256i even = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.digits + 64 * i));
    const __m256i odd = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.digits + 64 * i + 32));
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], even), _mm256_maddubs_epi16(w[1], odd));
    const __m256i part = _mm256_madd_epi16(pairs, _mm256_set1_epi16(static_cast<short>(weight)));
    sum = i == 0 ? part : _mm256_add_epi32(sum, part);
  }
  return _mm256_cvtepi32_ps(
      _mm256_sub_epi32(sum, _mm256_load_si256(reinterpret_cast<const __m256i*>(x.offset))));
}
inline __m256 add_chunk(const std::uint8_t* codes, __m256 scale, const Digits& x, __m256 total) {
  __m256i w[2];
  decode_bytes(codes, w);
  const __m256 dot = x.is_short ? dot_digits<2, 256>(w, x) : dot_digits<3, 128>(w, x);
  return _mm256_fmadd_ps(_mm256_mul_ps(dot, scale), _mm256_set1_ps(x.scale), total);
}

float sum_of(__m256 v) {
  float lanes[8];
  _mm256_storeu_ps(lanes, v);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

struct Job {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  const float* x;        // permuted for the format
  const Digits* digits;  // of the same input
  float* y;
};

template <int kRows>
void fp4_floats(const Job& j, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; row += kRows) {
    __m256 total[kRows];
    for (auto& t : total) t = _mm256_setzero_ps();
    for (int col = 0; col < kCols; col += 64)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        __m256 v[8], scale[2];
        decode_floats(j.codes + ((row + r) * kCols + col) / 2, v);
        __m256 acc = _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) acc = _mm256_fmadd_ps(v[k], _mm256_load_ps(j.x + col + 8 * k), acc);
        e8m0_two(j.scales + ((row + r) * kCols + col) / 32, scale);
        total[r] = _mm256_fmadd_ps(acc, scale[0], total[r]);
      }
    for (int r = 0; r < kRows; ++r) j.y[row + r] = sum_of(total[r]);
  }
}

template <int kRows, int kAhead, bool kNv>
void fp4_digits(const Job& j, std::int64_t begin, std::int64_t end) {
  constexpr int kGroup = kNv ? 16 : 32;
  for (std::int64_t row = begin; row < end; row += kRows) {
    __m256 total[kRows];
    for (auto& t : total) t = _mm256_setzero_ps();
    for (int col = 0; col < kCols; col += 128)
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const std::uint8_t* codes = j.codes + ((row + r) * kCols + col) / 2;
        const std::uint8_t* scales = j.scales + ((row + r) * kCols + col) / kGroup;
        prefetch<kAhead>(codes);
        __m256 scale[2];
        if (kNv) {
          scale[0] = e4m3_four(scales);
          scale[1] = e4m3_four(scales + 4);
        } else {
          e8m0_two(scales, scale);
        }
        const Digits* x = j.digits + col / 64;
        total[r] = add_chunk(codes, scale[0], x[0], total[r]);
        total[r] = add_chunk(codes + 32, scale[1], x[1], total[r]);
      }
    for (int r = 0; r < kRows; ++r) j.y[row + r] = sum_of(total[r]);
  }
}

// One chunk of kRows rows; its digits, offset and scale are loaded once.
template <int kRows, int kDigits, int kBase, bool kNv>
inline void add_rows(const std::uint8_t* codes, const std::uint8_t* scales, const Digits& x,
                     __m256 total[kRows]) {
  constexpr int kGroup = kNv ? 16 : 32;
  __m256i even[kDigits], odd[kDigits];
  for (int i = 0; i < kDigits; ++i) {
    even[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.digits + 64 * i));
    odd[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.digits + 64 * i + 32));
    asm("" : "+x"(even[i]), "+x"(odd[i]));
  }
  const __m256i offset = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.offset));
  const __m256 unit = _mm256_set1_ps(x.scale);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    __m256i w[2];
    decode_bytes(codes + r * (kCols / 2), w);
    __m256i sum = _mm256_setzero_si256();
    int weight = 1;
#pragma GCC unroll 3
    for (int i = 0; i < kDigits; ++i, weight *= kBase) {
      const __m256i pairs =
          _mm256_add_epi16(_mm256_maddubs_epi16(w[0], even[i]), _mm256_maddubs_epi16(w[1], odd[i]));
      const __m256i part = _mm256_madd_epi16(pairs, _mm256_set1_epi16(static_cast<short>(weight)));
      sum = i == 0 ? part : _mm256_add_epi32(sum, part);
    }
    const __m256 dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, offset));
    __m256 scale;
    const std::uint8_t* p = scales + r * (kCols / kGroup);
    if (kNv) {
      scale = e4m3_four(p);
    } else {
      std::uint16_t pair;
      std::memcpy(&pair, p, 2);
      const __m256i spread = _mm256_setr_epi8(0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1,
                                              -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1);
      scale = _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_shuffle_epi8(_mm256_set1_epi16(static_cast<short>(pair)), spread), 23));
    }
    total[r] = _mm256_fmadd_ps(_mm256_mul_ps(dot, scale), unit, total[r]);
  }
}

template <int kRows, int kAhead, bool kNv>
void fp4_shared(const Job& j, std::int64_t begin, std::int64_t end) {
  constexpr int kGroup = kNv ? 16 : 32;
  for (std::int64_t row = begin; row < end; row += kRows) {
    __m256 total[kRows];
    for (auto& t : total) t = _mm256_setzero_ps();
    const std::uint8_t* codes = j.codes + row * kCols / 2;
    const std::uint8_t* scales = j.scales + row * kCols / kGroup;
    for (int col = 0; col < kCols; col += 64, codes += 32, scales += 64 / kGroup) {
      if (col % 128 == 0)
        for (int r = 0; r < kRows; ++r) prefetch<kAhead>(codes + r * (kCols / 2));
      const Digits& x = j.digits[col / 64];
      if (x.is_short)
        add_rows<kRows, 2, 256, kNv>(codes, scales, x, total);
      else
        add_rows<kRows, 3, 128, kNv>(codes, scales, x, total);
    }
    for (int r = 0; r < kRows; ++r) j.y[row + r] = sum_of(total[r]);
  }
}

// ---- FP8 and BF16 ----

inline void decode_fp8(const std::uint8_t* p, __m256 out[4], __m256i& largest) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  largest = _mm256_max_epu8(largest, _mm256_or_si256(x, _mm256_set1_epi8(-128)));
  const __m256i keep = _mm256_set1_epi16(static_cast<short>(0x87f0));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(x, 4), keep);
  const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 4), keep);
  out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(even, 16));
  out[1] = _mm256_castsi256_ps(_mm256_slli_epi32(odd, 16));
  out[2] = _mm256_castsi256_ps(_mm256_and_si256(even, high));
  out[3] = _mm256_castsi256_ps(_mm256_and_si256(odd, high));
}

template <int kRows, int kAhead>
void fp8(const Job& j, std::int64_t begin, std::int64_t end) {
  __m256i largest = _mm256_setzero_si256();
  for (std::int64_t row = begin; row < end; row += kRows) {
    __m256 total[kRows];
    for (auto& t : total) t = _mm256_setzero_ps();
    for (int block = 0; block < kCols; block += 128) {
      __m256 acc[kRows];
      for (auto& a : acc) a = _mm256_setzero_ps();
      for (int col = block; col < block + 128; col += 32)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const std::uint8_t* p = j.codes + (row + r) * kCols + col;
          if (col % 64 == 0) prefetch<kAhead>(p);
          __m256 v[4];
          decode_fp8(p, v, largest);
#pragma GCC unroll 4
          for (int k = 0; k < 4; ++k)
            acc[r] = _mm256_fmadd_ps(v[k], _mm256_load_ps(j.x + col + 8 * k), acc[r]);
        }
      for (int r = 0; r < kRows; ++r) {
        const std::uint32_t scale =
            static_cast<std::uint32_t>(j.scales[(row + r) / 128 * (kCols / 128) + block / 128]) << 23;
        float value;
        std::memcpy(&value, &scale, 4);
        total[r] = _mm256_fmadd_ps(acc[r], _mm256_set1_ps(value * 0x1p+56f), total[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) j.y[row + r] = sum_of(total[r]);
  }
  sink = sink + static_cast<std::uint64_t>(_mm256_movemask_epi8(largest));
}

// The scales of a block of 128 rows on the input instead: a power of two changes no rounding, wherever it
// stands.
template <int kRows, int kAhead>
void fp8_scaled_input(const Job& j, std::int64_t begin, std::int64_t end) {
  alignas(64) float scaled[kCols];
  __m256i largest = _mm256_setzero_si256();
  for (std::int64_t row = begin; row < end; row += kRows) {
    if (row % 128 == 0 || row == begin)
      for (int col = 0; col < kCols; col += 8) {
        const std::uint32_t bits = static_cast<std::uint32_t>(j.scales[row / 128 * (kCols / 128) + col / 128])
                                   << 23;
        float value;
        std::memcpy(&value, &bits, 4);
        _mm256_store_ps(scaled + col,
                        _mm256_mul_ps(_mm256_load_ps(j.x + col), _mm256_set1_ps(value * 0x1p+20f)));
      }
    __m256 total[kRows];
    for (auto& t : total) t = _mm256_setzero_ps();
    for (int block = 0; block < kCols; block += 128) {
      __m256 acc[kRows];
      for (auto& a : acc) a = _mm256_setzero_ps();
      for (int col = block; col < block + 128; col += 32)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const std::uint8_t* p = j.codes + (row + r) * kCols + col;
          if (col % 64 == 0) prefetch<kAhead>(p);
          __m256 v[4];
          decode_fp8(p, v, largest);
#pragma GCC unroll 4
          for (int k = 0; k < 4; ++k)
            acc[r] = _mm256_fmadd_ps(v[k], _mm256_load_ps(scaled + col + 8 * k), acc[r]);
        }
      for (int r = 0; r < kRows; ++r) total[r] = _mm256_add_ps(total[r], acc[r]);
    }
    for (int r = 0; r < kRows; ++r) j.y[row + r] = sum_of(total[r]) * 0x1p+36f;
  }
  sink = sink + static_cast<std::uint64_t>(_mm256_movemask_epi8(largest));
}

template <int kRows, int kAhead>
void bf16(const Job& j, std::int64_t begin, std::int64_t end) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (std::int64_t row = begin; row < end; row += kRows) {
    __m256 total[kRows];
    for (auto& t : total) t = _mm256_setzero_ps();
    for (int col = 0; col < kCols; col += 16)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const std::uint8_t* p = j.codes + ((row + r) * kCols + col) * 2;
        if (col % 32 == 0) prefetch<kAhead>(p);
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        total[r] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_load_ps(j.x + col),
                                   total[r]);
        total[r] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, high)),
                                   _mm256_load_ps(j.x + col + 8), total[r]);
      }
    for (int r = 0; r < kRows; ++r) j.y[row + r] = sum_of(total[r]);
  }
}

// ---- the run ----

using Kernel = void (*)(const Job&, std::int64_t, std::int64_t);
struct Idea {
  std::string name;
  Kernel kernel;
  std::string format;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 3 ? argv[3] : "";
  const std::size_t bytes = static_cast<std::size_t>(argc > 1 ? std::atoi(argv[1]) : 1280) << 20;
  const int passes = argc > 2 ? std::atoi(argv[2]) : 7;
  Random random;
  Buffer<std::uint8_t> codes(bytes), scales(bytes / 8 + (1 << 20));
  // Codes as weights have them: any E2M1; as E4M3 neither NaN nor subnormal; as BF16 finite and small.
  run([&](int t) {
    Random own;
    own.state += static_cast<std::uint64_t>(t) << 32;
    const std::size_t half = bytes / static_cast<std::size_t>(num_threads);
    for (std::size_t i = half * static_cast<std::size_t>(t); i < half * static_cast<std::size_t>(t + 1);
         ++i) {
      const std::uint32_t r = own.next();
      codes.data[i] = static_cast<std::uint8_t>((r & 0x87u) | (4u + (r >> 8) % 10u) << 3);
    }
  });
  Buffer<std::uint8_t> e4m3_scales(bytes / 8 + (1 << 20));
  std::memset(scales.data, 118, scales.count);
  for (std::size_t i = 0; i < 1 << 20; ++i)
    scales.data[i] = static_cast<std::uint8_t>(116 + random.next() % 5);
  std::memset(e4m3_scales.data, 0x38, e4m3_scales.count);

  std::vector<int> numbers(kCols);
  for (int& n : numbers) n = random_e4m3(random);
  std::vector<Digits> digits;
  for (int c = 0; c < kCols; c += 64) digits.push_back(digits_of(numbers.data() + c));
  int shorts = 0;
  for (const Digits& d : digits) shorts += d.is_short;
  const auto value = [&](int col) {
    return static_cast<float>(numbers[static_cast<std::size_t>(col)]) / 512.0f;
  };
  Buffer<float> nibbles(kCols), quads(kCols), pairs(kCols), y(bytes / (kCols / 2) + 16);
  for (int c = 0; c < kCols; c += 64)
    for (int v = 0; v < 8; ++v)
      for (int l = 0; l < 8; ++l) {
        nibbles.data[c + 8 * v + l] = value(c + 32 * (l / 4) + 16 * (v / 4) + 4 * (l % 4) + v % 4);
        quads.data[c + 8 * v + l] = value(c + 32 * (v / 4) + 4 * l + v % 4) * 0x1p+64f;
        pairs.data[c + 8 * v + l] = value(c + 16 * (v / 2) + 2 * l + v % 2);
      }

  const std::vector<Idea> ideas = {
      {"1 floats, 8 rows", fp4_floats<8>, "fp4"},
      {"2 digits, 1 row", fp4_digits<1, 0, false>, "fp4"},
      {"3 digits, prefetch 512", fp4_digits<1, 512, false>, "fp4"},
      {"3 digits, prefetch 1024", fp4_digits<1, 1024, false>, "fp4"},
      {"3 digits, prefetch 2048", fp4_digits<1, 2048, false>, "fp4"},
      {"3 digits, prefetch 4096", fp4_digits<1, 4096, false>, "fp4"},
      {"3 digits, prefetch 8192", fp4_digits<1, 8192, false>, "fp4"},
      {"3 digits, L2 4096", fp4_digits<1, -4096, false>, "fp4"},
      {"3 digits, L2 8192", fp4_digits<1, -8192, false>, "fp4"},
      {"4 digits, 2 rows, prefetch 2048", fp4_shared<2, 2048, false>, "fp4"},
      {"4 digits, 4 rows, prefetch 1024", fp4_shared<4, 1024, false>, "fp4"},
      {"4 digits, 4 rows, prefetch 4096", fp4_shared<4, 4096, false>, "fp4"},
      {"4 digits, 4 rows, prefetch 8192", fp4_shared<4, 8192, false>, "fp4"},
      {"3 digits, prefetch 1024", fp4_digits<1, 1024, true>, "nvfp4"},
      {"3 digits, prefetch 2048", fp4_digits<1, 2048, true>, "nvfp4"},
      {"4 digits, 2 rows, prefetch 2048", fp4_shared<2, 2048, true>, "nvfp4"},
      {"4 digits, 4 rows, prefetch 4096", fp4_shared<4, 4096, true>, "nvfp4"},
      {"5 4 rows", fp8<4, 0>, "fp8"},
      {"5 4 rows, prefetch 1024", fp8<4, 1024>, "fp8"},
      {"5 4 rows, prefetch 2048", fp8<4, 2048>, "fp8"},
      {"5 4 rows, prefetch 4096", fp8<4, 4096>, "fp8"},
      {"5 8 rows, prefetch 2048", fp8<8, 2048>, "fp8"},
      {"5 2 rows, prefetch 2048", fp8<2, 2048>, "fp8"},
      {"6 scaled input, 4 rows", fp8_scaled_input<4, 0>, "fp8"},
      {"6 scaled input, 4 rows, prefetch 1024", fp8_scaled_input<4, 1024>, "fp8"},
      {"6 scaled input, 4 rows, prefetch 2048", fp8_scaled_input<4, 2048>, "fp8"},
      {"6 scaled input, 4 rows, prefetch 4096", fp8_scaled_input<4, 4096>, "fp8"},
      {"7 scaled input, 4 rows, prefetch 16384", fp8_scaled_input<4, 16384>, "fp8"},
      {"7 scaled input, 4 rows, L2 16384", fp8_scaled_input<4, -16384>, "fp8"},
      {"7 scaled input, 2 rows, prefetch 8192", fp8_scaled_input<2, 8192>, "fp8"},
      {"7 scaled input, 2 rows, L2 8192", fp8_scaled_input<2, -8192>, "fp8"},
      {"5 4 rows", bf16<4, 0>, "bf16"},
      {"5 4 rows, prefetch 1024", bf16<4, 1024>, "bf16"},
      {"5 4 rows, prefetch 2048", bf16<4, 2048>, "bf16"},
      {"5 8 rows, prefetch 2048", bf16<8, 2048>, "bf16"},
  };
  const auto job_of = [&](const std::string& format) {
    const float* x = format == "fp8" ? quads.data : format == "bf16" ? pairs.data : nibbles.data;
    return Job{codes.data, format == "nvfp4" ? e4m3_scales.data : scales.data, x, digits.data(), y.data};
  };
  const auto row_bytes = [](const std::string& format) {
    return format == "bf16" ? 2 * kCols : format == "fp8" ? kCols : kCols / 2;
  };
  const auto scale_bytes = [](const std::string& format) {
    return format == "fp4" ? kCols / 32 : format == "nvfp4" ? kCols / 16 : 0;
  };

  // Against a plain loop in double.
  for (const Idea& idea : ideas) {
    const Job job = job_of(idea.format);
    idea.kernel(job, 0, 16);
    double worst = 0;
    for (int row = 0; row < 16; ++row) {
      double expected = 0, size = 0;
      for (int c = 0; c < kCols; ++c) {
        const std::int64_t at = std::int64_t{row} * kCols + c;
        double w = 0;
        if (idea.format == "fp4" || idea.format == "nvfp4") {
          const unsigned pair = codes.data[at / 2];
          w = e2m1(at % 2 == 0 ? pair & 15u : pair >> 4);
          w *= idea.format == "fp4" ? std::ldexp(1.0, job.scales[at / 32] - 127) : 1.0;
        } else if (idea.format == "fp8") {
          const unsigned code = codes.data[at];
          w = std::ldexp(1.0 + (code & 7u) / 8.0, static_cast<int>(code >> 3 & 15u) - 7);
          w = (code & 128u ? -w : w) * std::ldexp(1.0, job.scales[row / 128 * (kCols / 128) + c / 128] - 127);
        } else {
          std::uint32_t u = static_cast<std::uint32_t>(codes.data[2 * at] | codes.data[2 * at + 1] << 8)
                            << 16;
          float f;
          std::memcpy(&f, &u, 4);
          w = f;
        }
        expected += w * value(c);
        size += std::fabs(w * value(c));
      }
      worst = std::max(worst, std::fabs(expected - y.data[row]) / size);
    }
    if (!(worst < 1e-6)) {
      std::printf("%s, %s: off by %g of the sum of magnitudes\n", idea.format.c_str(), idea.name.c_str(),
                  worst);
      return 1;
    }
  }

  const std::size_t part = bytes / static_cast<std::size_t>(num_threads);
  const auto read = [&] {
    return static_cast<double>(bytes) /
           run([&](int t) { read_bytes(codes.data + part * static_cast<std::size_t>(t), part); });
  };
  read();
  std::printf("%d threads, %zu MiB, %d of %zu chunks with two digits\n", num_threads, bytes >> 20, shorts,
              digits.size());
  for (const Idea& idea : ideas) {
    if (!only.empty() && idea.format != only) continue;
    const Job job = job_of(idea.format);
    const std::int64_t rows = static_cast<std::int64_t>(bytes) / row_bytes(idea.format);
    const double moved = static_cast<double>(rows * (row_bytes(idea.format) + scale_bytes(idea.format)));
    std::vector<double> rates, shares;
    for (int i = 0; i < passes; ++i) {
      const double yardstick = read();
      const std::int64_t half = rows / num_threads / 16 * 16;
      const double seconds = run([&](int t) { idea.kernel(job, half * t, half * (t + 1)); });
      rates.push_back(moved / seconds);
      shares.push_back(moved / seconds / yardstick);
    }
    std::printf("%-6s %-38s %6.2f GB/s %6.1f %% of reading\n", idea.format.c_str(), idea.name.c_str(),
                median(rates) * 1e-9, 100 * median(shares));
    std::fflush(stdout);
  }
}
