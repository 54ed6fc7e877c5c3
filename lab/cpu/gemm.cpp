// Laboratory: many tokens times FP8 and FP4 weights, against the multiply-add peak of the same run.
//
//   g++ -std=c++20 -O3 -mavx2 -mfma -ffp-contract=off -pthread gemm.cpp -o gemm && ./gemm [TOKENS] [PASSES]
//
// W [1024, 4096], each thread half of its rows. Every idea sums in the order of the one-token kernel: 8 lanes
// over the columns as the decoder delivers them, a new sum per scale block, fma(sum, scale, total). Ideas, in
// order:
//  1. floats:   a tile of 16 rows and 256 columns is decoded once, 4 rows by 3 tokens at a time; totals in
//  memory.
//               The compiler folds a load into each multiply-add that shares it: 15 loads for 12 of them.
//  2. loads once: an empty asm keeps inputs and weights in registers: 7 loads for 12.
//  3. groups:   64 rows pass over one tile of inputs before the next, so that inputs come from the L2 cache.
//  4. skewed:   rows of inputs lie 16 KiB apart, so that all tokens' tiles meet in the same few sets of both
//  caches;
//               64 bytes between rows spread them.
//  5. digits:   FP4 in integers (gemv.cpp, idea 2), a chunk's digits in registers, eight rows at a time.
//  6. words:    as 5 with 16-bit integers (an input with two digits fits one): 4 word multiplies a chunk
//  instead of
//               4 byte and 2 word multiplies, for weights twice as long.
#include "bench.h"

namespace {

using namespace lab;
constexpr int kCols = 4096, kRows = 1024, kTile = 16, kTileCols = 256;
constexpr int kRecords = kCols / 64 + 1;  // of a token: one is skipped, as in idea 4
int tokens = 192;

inline __m256 load_once(const float* p) {
  __m256 v = _mm256_load_ps(p);
  asm("" : "+x"(v));
  return v;
}

float sum_of(const float* lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

struct Problem {
  std::vector<std::uint8_t> codes8, codes4, scales4;
  Buffer<float> x{std::size_t{1} << 22};               // [tokens][kCols], in FP8 column order, times 2^64
  std::vector<int> numbers;                            // the same in units of 2^-6
  Buffer<float> x_skewed{std::size_t{1} << 22};        // [tokens][kCols + 16]
  Buffer<std::int8_t> digits{std::size_t{1} << 22};    // [tokens][kCols/64][2 digits][64]
  Buffer<std::int32_t> offsets{std::size_t{1} << 20};  // [tokens][kCols/64][8]
  Buffer<std::int16_t> words{std::size_t{1} << 22};    // [tokens][kCols/64][64]
  std::vector<float> y;
};

// ---- FP8 ----

inline void decode_fp8(const std::uint8_t* p, float* out) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i keep = _mm256_set1_epi16(static_cast<short>(0x87f0));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(x, 4), keep);
  const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 4), keep);
  _mm256_store_ps(out, _mm256_castsi256_ps(_mm256_slli_epi32(even, 16)));
  _mm256_store_ps(out + 8, _mm256_castsi256_ps(_mm256_slli_epi32(odd, 16)));
  _mm256_store_ps(out + 16, _mm256_castsi256_ps(_mm256_and_si256(even, high)));
  _mm256_store_ps(out + 24, _mm256_castsi256_ps(_mm256_and_si256(odd, high)));
}

template <bool kOnce>
void multiply_fp8(const float* weights, const float* const* x, int col, float* totals) {
  for (int block = 0; block < kTileCols; block += 128) {
    __m256 acc[4][3];
    for (auto& row : acc)
      for (auto& a : row) a = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int c = block; c < block + 128; c += 8) {
      __m256 in[3];
      for (int t = 0; t < 3; ++t) in[t] = kOnce ? load_once(x[t] + col + c) : _mm256_load_ps(x[t] + col + c);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const float* p = weights + r * kTileCols + c;
        const __m256 w = kOnce ? load_once(p) : _mm256_load_ps(p);
#pragma GCC unroll 3
        for (int t = 0; t < 3; ++t) acc[r][t] = _mm256_fmadd_ps(w, in[t], acc[r][t]);
      }
    }
    asm volatile("" ::: "memory");
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r)
#pragma GCC unroll 3
      for (int t = 0; t < 3; ++t) {
        float* total = totals + (t * kTile + r) * 8;
        _mm256_store_ps(total, _mm256_fmadd_ps(acc[r][t], _mm256_set1_ps(0x1p+56f), _mm256_load_ps(total)));
      }
  }
}

template <bool kOnce, int kGroup, bool kSkewed>
void fp8(Problem& p, int begin, int end) {
  constexpr int kTokens = 96;
  static thread_local Buffer<float> weights(kTile * kTileCols), totals(kTokens * kGroup * 8);
  for (int first = 0; first < tokens; first += kTokens)
    for (int group = begin; group < end; group += kGroup) {
      std::memset(totals.data, 0, totals.count * 4);
      for (int col = 0; col < kCols; col += kTileCols)
        for (int row = group; row < group + kGroup; row += kTile) {
          for (int r = 0; r < kTile; ++r)
            for (int c = 0; c < kTileCols; c += 32)
              decode_fp8(p.codes8.data() + static_cast<std::size_t>(row + r) * kCols + col + c,
                         weights.data + r * kTileCols + c);
          for (int t = 0; t < kTokens; t += 3) {
            const float* x[3];
            for (int k = 0; k < 3; ++k)
              x[k] = kSkewed ? p.x_skewed.data + static_cast<std::size_t>(first + t + k) * (kCols + 16)
                             : p.x.data + static_cast<std::size_t>(first + t + k) * kCols;
            for (int r = 0; r < kTile; r += 4)
              multiply_fp8<kOnce>(weights.data + r * kTileCols, x, col,
                                  totals.data + ((row - group) * kTokens + t * kTile + r) * 8);
          }
        }
      for (int t = 0; t < kTokens; ++t)
        for (int r = 0; r < kGroup; ++r)
          p.y[static_cast<std::size_t>((first + t) * kRows + group + r)] =
              sum_of(totals.data + (r / kTile * kTile * kTokens + t * kTile + r % kTile) * 8);
    }
}

// ---- FP4 ----

const std::int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// kStep columns of 16 rows are decoded, kTogether rows at a time.
template <bool kWords, int kStep, int kTogether>
void fp4(Problem& p, int begin, int end) {
  constexpr int kTokens = 64, kGroup = 64, kChunks = kStep / 64;
  static thread_local Buffer<std::uint8_t> weights(kTile * kChunks * 128);
  static thread_local Buffer<float> scales(kTile * kChunks * 8), totals(kTokens * kGroup * 8);
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  for (int first = 0; first < tokens; first += kTokens)
    for (int group = begin; group < end; group += kGroup) {
      std::memset(totals.data, 0, totals.count * 4);
      for (int col = 0; col < kCols; col += kStep)
        for (int row = group; row < group + kGroup; row += kTile) {
          for (int r = 0; r < kTile; ++r)
            for (int chunk = 0; chunk < kChunks; ++chunk) {
              const std::size_t at =
                  static_cast<std::size_t>(row + r) * kCols + static_cast<std::size_t>(col + 64 * chunk);
              const __m256i x =
                  _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p.codes4.data() + at / 2));
              __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble));
              __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
              auto* out = reinterpret_cast<__m256i*>(weights.data + (r * kChunks + chunk) * 128);
              if (kWords) {
                const __m256i twelve = _mm256_set1_epi8(12);
                even = _mm256_sub_epi8(even, twelve);
                odd = _mm256_sub_epi8(odd, twelve);
                const __m256i low = _mm256_set1_epi16(0xff);
                // Words: even columns 0,2 mod 4, ..., sign extended.
                out[0] = _mm256_srai_epi16(_mm256_slli_epi16(even, 8), 8);
                out[1] = _mm256_srai_epi16(even, 8);
                out[2] = _mm256_srai_epi16(_mm256_slli_epi16(odd, 8), 8);
                out[3] = _mm256_srai_epi16(odd, 8);
                (void)low;
              } else {
                out[0] = even;
                out[1] = odd;
              }
              for (int l = 0; l < 8; ++l) {
                const std::uint32_t bits =
                    static_cast<std::uint32_t>(p.scales4[at / 32 + static_cast<std::size_t>(l / 4)]) << 23;
                std::memcpy(scales.data + (r * kChunks + chunk) * 8 + l, &bits, 4);
              }
            }
          for (int t = 0; t < kTokens; ++t)
            for (int half = 0; half < kTile; half += kTogether) {
              __m256 total[kTogether];
              float* to = totals.data + (t * kGroup + row - group + half) * 8;
              for (int r = 0; r < kTogether; ++r) total[r] = _mm256_load_ps(to + 8 * r);
              for (int chunk = 0; chunk < kChunks; ++chunk) {
                const std::size_t record = static_cast<std::size_t>(first + t) * kRecords +
                                           static_cast<std::size_t>(col / 64 + chunk);
                const auto* d = reinterpret_cast<const __m256i*>(
                    kWords ? reinterpret_cast<const std::int8_t*>(p.words.data + record * 64)
                           : p.digits.data + record * 128);
                __m256i in[4];
                for (int i = 0; i < 4; ++i) {
                  in[i] = _mm256_load_si256(d + i);
                  asm("" : "+x"(in[i]));
                }
                const __m256i offset =
                    _mm256_load_si256(reinterpret_cast<const __m256i*>(p.offsets.data + record * 8));
                const __m256 unit = _mm256_set1_ps(0x1p-7f);
#pragma GCC unroll 8
                for (int r = 0; r < kTogether; ++r) {
                  const auto* w =
                      reinterpret_cast<const __m256i*>(weights.data + ((half + r) * kChunks + chunk) * 128);
                  __m256i dot;
                  if (kWords) {
                    dot = _mm256_add_epi32(
                        _mm256_add_epi32(_mm256_madd_epi16(in[0], w[0]), _mm256_madd_epi16(in[1], w[1])),
                        _mm256_add_epi32(_mm256_madd_epi16(in[2], w[2]), _mm256_madd_epi16(in[3], w[3])));
                  } else {
                    const __m256i even = _mm256_load_si256(w), odd = _mm256_load_si256(w + 1);
                    const __m256i low =
                        _mm256_add_epi16(_mm256_maddubs_epi16(even, in[0]), _mm256_maddubs_epi16(odd, in[1]));
                    const __m256i high =
                        _mm256_add_epi16(_mm256_maddubs_epi16(even, in[2]), _mm256_maddubs_epi16(odd, in[3]));
                    dot = _mm256_add_epi32(_mm256_madd_epi16(low, _mm256_set1_epi16(1)),
                                           _mm256_madd_epi16(high, _mm256_set1_epi16(256)));
                    dot = _mm256_sub_epi32(dot, offset);
                  }
                  const __m256 scale = _mm256_load_ps(scales.data + ((half + r) * kChunks + chunk) * 8);
                  total[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot), scale), unit, total[r]);
                }
              }
              for (int r = 0; r < kTogether; ++r) _mm256_store_ps(to + 8 * r, total[r]);
            }
        }
      for (int t = 0; t < kTokens; ++t)
        for (int r = 0; r < kGroup; ++r)
          p.y[static_cast<std::size_t>((first + t) * kRows + group + r)] =
              sum_of(totals.data + (t * kGroup + r) * 8);
    }
}

struct Idea {
  const char* name;
  void (*kernel)(Problem&, int, int);
  bool is_fp4;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) tokens = std::atoi(argv[1]) / 192 * 192;
  if (tokens == 0 || tokens > 384) tokens = 192;
  const int passes = argc > 2 ? std::atoi(argv[2]) : 9;
  Random random;
  Problem p;
  for (std::size_t i = 0; i < std::size_t{kRows} * kCols; ++i)
    p.codes8.push_back(static_cast<std::uint8_t>((random.next() & 0x87u) | (4u + random.next() % 10u) << 3));
  for (std::size_t i = 0; i < std::size_t{kRows} * kCols / 2; ++i)
    p.codes4.push_back(static_cast<std::uint8_t>(random.next()));
  for (std::size_t i = 0; i < std::size_t{kRows} * kCols / 32; ++i)
    p.scales4.push_back(static_cast<std::uint8_t>(116 + random.next() % 5));
  p.numbers.resize(static_cast<std::size_t>(tokens) * kCols);
  for (int& n : p.numbers) {
    n = static_cast<int>(random.normal() * 8000.0f);
    int step = 1;
    while (std::abs(n) / step >= 16) step *= 2;  // four significant bits
    n = n / step * step;
  }
  for (int t = 0; t < tokens; ++t)
    for (int c = 0; c < kCols; ++c) {
      const std::size_t row = static_cast<std::size_t>(t) * kCols;
      const int n = p.numbers[row + static_cast<std::size_t>(c)];
      const int in32 = c % 32;
      p.x.data[row + static_cast<std::size_t>(c - in32 + in32 % 4 * 8 + in32 / 4)] =
          std::ldexp(static_cast<float>(n), 64 - 6);
      const std::size_t record = static_cast<std::size_t>(t) * kRecords + static_cast<std::size_t>(c / 64);
      const int i = c % 64;
      const int low = ((n + 128) & 255) - 128;
      p.digits.data[record * 128 + static_cast<std::size_t>(32 * (i % 2) + i / 2)] =
          static_cast<std::int8_t>(low);
      p.digits.data[record * 128 + static_cast<std::size_t>(64 + 32 * (i % 2) + i / 2)] =
          static_cast<std::int8_t>((n - low) / 256);
      if (i % 8 == 0) p.offsets.data[record * 8 + static_cast<std::size_t>(i / 8)] = 0;
      p.offsets.data[record * 8 + static_cast<std::size_t>(i / 8)] += 12 * n;
      // Columns 4j, 4j+2 (even bytes), 4j+1, 4j+3 (odd bytes) of word vectors 0 to 3.
      p.words.data[record * 64 + static_cast<std::size_t>(16 * (i % 2 * 2 + i % 4 / 2) + i / 4)] =
          static_cast<std::int16_t>(n);
    }
  p.y.resize(static_cast<std::size_t>(tokens) * kRows);
  for (int t = 0; t < tokens; ++t)
    std::copy_n(p.x.data + static_cast<std::size_t>(t) * kCols, kCols,
                p.x_skewed.data + static_cast<std::size_t>(t) * (kCols + 16));

  const std::vector<Idea> ideas = {{"1 fp8 floats", fp8<false, 16, false>, false},
                                   {"2 fp8 loads once", fp8<true, 16, false>, false},
                                   {"3 fp8 groups of 64 rows", fp8<true, 64, false>, false},
                                   {"4 fp8 skewed inputs", fp8<true, 64, true>, false},
                                   {"4 fp8 skewed, groups of 16", fp8<true, 16, true>, false},
                                   {"5 fp4 digits, 8 rows", fp4<false, 1024, 8>, true},
                                   {"5 fp4 digits, 4 rows", fp4<false, 1024, 4>, true},
                                   {"5 fp4 digits, 4 rows, 512 columns", fp4<false, 512, 4>, true},
                                   {"6 fp4 words, 8 rows", fp4<true, 512, 8>, true},
                                   {"6 fp4 words, 4 rows", fp4<true, 512, 4>, true}};
  for (const Idea& idea : ideas) {
    idea.kernel(p, 0, 64);
    double worst = 0;
    for (const int t : {0, 5, tokens - 1})
      for (int row = 0; row < 64; ++row) {
        double expected = 0, size = 0;
        for (int c = 0; c < kCols; ++c) {
          const std::size_t at = static_cast<std::size_t>(row) * kCols + static_cast<std::size_t>(c);
          double w;
          if (idea.is_fp4) {
            const unsigned pair = p.codes4[at / 2];
            w = 0.5 * kDoubled[at % 2 == 0 ? pair & 15u : pair >> 4] *
                std::ldexp(1.0, p.scales4[at / 32] - 127);
          } else {
            const unsigned code = p.codes8[at];
            w = std::ldexp(1.0 + (code & 7u) / 8.0, static_cast<int>(code >> 3 & 15u) - 7) *
                (code & 128u ? -1 : 1);
          }
          const double x =
              p.numbers[static_cast<std::size_t>(t) * kCols + static_cast<std::size_t>(c)] / 64.0;
          expected += w * x;
          size += std::fabs(w * x);
        }
        worst = std::max(worst, std::fabs(expected - p.y[static_cast<std::size_t>(t * kRows + row)]) / size);
      }
    if (!(worst < 1e-6)) {
      std::printf("%s: off by %g of the sum of magnitudes\n", idea.name, worst);
      return 1;
    }
  }
  multiply_adds_per_second();
  std::printf("%d threads, %d tokens, W [%d, %d]\n", num_threads, tokens, kRows, kCols);
  for (const Idea& idea : ideas) {
    std::vector<double> rates, shares;
    for (int i = 0; i < passes; ++i) {
      const double peak = 8 * multiply_adds_per_second();
      const int half = kRows / num_threads;
      const double seconds = run([&](int t) { idea.kernel(p, half * t, half * (t + 1)); });
      rates.push_back(static_cast<double>(tokens) * kRows * kCols / seconds);
      shares.push_back(rates.back() / peak);
    }
    std::printf("%-26s %7.1f G multiply-adds/s %6.1f %% of the fp32 peak\n", idea.name, median(rates) * 1e-9,
                100 * median(shares));
    std::fflush(stdout);
  }
}
