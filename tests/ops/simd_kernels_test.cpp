// The kernel tables, function by function: sums against the oracle on shapes that cross every tile edge, a
// token's bits alone and among others, integer inputs against the quantiser they stand for, and AVX-512
// against AVX2 bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/linear.h"
#include "ops/parity_case.h"

#ifdef PIVOT_HAVE_SIMDE
namespace pivot::simd {
extern const Kernels kEmulatedAvx512Kernels;
}
#endif

namespace pivot::test {
namespace {

using simd::Kernels;

struct Table {
  std::string name;
  const Kernels* kernels;
};
bool has_avx2() { return simd::supported_isas().size() > 1; }
std::vector<Table> tables() {
  std::vector<Table> all;
  for (const simd::Isa isa : simd::supported_isas())
    all.push_back({std::string(simd::to_string(isa)), &simd::kernels(isa)});
#ifdef PIVOT_HAVE_SIMDE
  if (has_avx2()) all.push_back({"emulated avx512", &simd::kEmulatedAvx512Kernels});
#endif
  return all;
}

struct Shape {
  MatrixFormat format;
  ScaleFormat scale;
  std::int64_t rows, cols;
  ActQuant act = ActQuant::kFp8;
};
std::string name_of(const Shape& s) {
  return fmt::format("format {} scale {} [{}, {}] act {}", static_cast<int>(s.format),
                     static_cast<int>(s.scale), s.rows, s.cols, static_cast<int>(s.act));
}
// Rows and columns on both sides of every tile edge; chunks that are not full.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  const auto add = [&](MatrixFormat format, ScaleFormat scale, std::initializer_list<std::int64_t> cols,
                       std::initializer_list<ActQuant> acts) {
    for (const std::int64_t c : cols)
      for (const std::int64_t rows : {37, 130})
        for (const ActQuant act : acts) all.push_back({format, scale, rows, c, act});
  };
  add(MatrixFormat::kF32, ScaleFormat::kNone, {8, 200, 520}, {ActQuant::kBf16});
  add(MatrixFormat::kBF16, ScaleFormat::kNone, {16, 200, 256, 1040}, {ActQuant::kBf16});
  add(MatrixFormat::kFP8, ScaleFormat::kE8M0, {32, 128, 200, 640}, {ActQuant::kFp8, ActQuant::kBf16});
  add(MatrixFormat::kFP8, ScaleFormat::kF32, {384}, {ActQuant::kFp8});
  add(MatrixFormat::kFP4, ScaleFormat::kE8M0, {32, 64, 224, 1120}, {ActQuant::kFp8, ActQuant::kBf16});
  add(MatrixFormat::kNVFP4, ScaleFormat::kE4M3, {16, 48, 192, 1136}, {ActQuant::kFp8, ActQuant::kBf16});
  return all;
}

// Prepared rows and the storage they lie in.
struct Inputs {
  simd::InputKind kind;
  std::vector<float> memory;
  std::vector<const float*> rows;
};
Inputs prepare(const Kernels& kernels, const Matrix& w, ActQuant act, const std::vector<float>& x,
               std::int64_t tokens) {
  Inputs in;
  in.kind = simd::input_kind(w, act);
  const std::int64_t padded = simd::padded_columns(w.cols);
  in.memory.resize(static_cast<std::size_t>(tokens * padded + 16));
  auto* base = reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(in.memory.data()) + 63) / 64 * 64);
  std::vector<float> temporary(static_cast<std::size_t>(w.cols));
  for (std::int64_t t = 0; t < tokens; ++t) {
    simd::prepare_row(kernels, in.kind, x.data() + t * w.cols, w.cols, temporary.data(), base + t * padded);
    in.rows.push_back(base + t * padded);
  }
  return in;
}
std::vector<float> product(const Kernels& kernels, const Matrix& w, const Inputs& in,
                           std::int64_t first_token, std::int64_t tokens, std::int64_t row_begin,
                           std::int64_t row_end, bool round) {
  std::vector<float> out(static_cast<std::size_t>(tokens * (row_end - row_begin)), -77.0f);
  kernels.linear(w, in.kind.order, row_begin, row_end, in.rows.data() + first_token, tokens, out.data(),
                 row_end - row_begin, round);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr std::int64_t kTokens = 103;  // more than every token tile, and an odd rest

TEST(SimdKernels, ProductsAgreeWithTheOracle) {
  for (const Shape& shape : shapes()) {
    Random random(41);
    std::vector<std::shared_ptr<std::vector<std::byte>>> storage;
    const Matrix w = random_matrix(random, shape.format, shape.scale, shape.rows, shape.cols, storage);
    const std::vector<float> x = normals(random, kTokens * shape.cols);
    ThreadPool pool(1);
    const reference::LinearInput input = reference::linear_input(w, shape.act, x.data(), kTokens, shape.cols);
    const std::vector<float> expected = reference::linear(w, input, pool);
    for (const Table& table : tables()) {
      const Inputs in = prepare(*table.kernels, w, shape.act, x, kTokens);
      const std::vector<float> actual = product(*table.kernels, w, in, 0, kTokens, 0, shape.rows, false);
      double worst = 0;
      for (std::size_t i = 0; i < expected.size(); ++i)
        worst = std::max(worst, std::fabs(static_cast<double>(expected[i]) - actual[i]));
      // Outputs have unit size; the two orders of some hundred products differ by a few ulp of the largest
      // sum.
      EXPECT_LT(worst, 2e-5) << table.name << ", " << name_of(shape);
    }
  }
}

TEST(SimdKernels, ATokenHasTheSameBitsAloneAndAmongOthers) {
  for (const Shape& shape : shapes()) {
    Random random(43);
    std::vector<std::shared_ptr<std::vector<std::byte>>> storage;
    const Matrix w = random_matrix(random, shape.format, shape.scale, shape.rows, shape.cols, storage);
    const std::vector<float> x = normals(random, kTokens * shape.cols);
    for (const Table& table : tables()) {
      const Inputs in = prepare(*table.kernels, w, shape.act, x, kTokens);
      const std::vector<float> whole = product(*table.kernels, w, in, 0, kTokens, 0, shape.rows, true);
      const auto row_of = [&](std::int64_t t, std::int64_t begin, std::int64_t end) {
        return std::vector<float>(whole.begin() + t * shape.rows + begin,
                                  whole.begin() + t * shape.rows + end);
      };
      for (const std::int64_t t : {0, 1, 2, 50, 95, 96, 102}) {
        EXPECT_TRUE(
            same_bits(product(*table.kernels, w, in, t, 1, 0, shape.rows, true), row_of(t, 0, shape.rows)))
            << table.name << ", " << name_of(shape) << ", token " << t;
        // A part of the rows, as another number of threads would have it.
        EXPECT_TRUE(same_bits(product(*table.kernels, w, in, t, 1, 5, 36, true), row_of(t, 5, 36)))
            << table.name << ", " << name_of(shape) << ", token " << t << ", rows 5 to 36";
      }
      for (const std::int64_t few : {2, 3, 4, 7}) {
        const std::vector<float> some = product(*table.kernels, w, in, 11, few, 0, shape.rows, true);
        const std::vector<float> expected(whole.begin() + 11 * shape.rows,
                                          whole.begin() + (11 + few) * shape.rows);
        EXPECT_TRUE(same_bits(some, expected))
            << table.name << ", " << name_of(shape) << ", " << few << " tokens";
      }
    }
  }
}

// Codes that are NaN reach the output of their row alone, in the one-token kernel and in the tiles.
TEST(SimdKernels, NanCodesOfFp8ReachTheirRow) {
  Random random(47);
  std::vector<std::shared_ptr<std::vector<std::byte>>> storage;
  const Matrix w = random_matrix(random, MatrixFormat::kFP8, ScaleFormat::kE8M0, 37, 200, storage);
  auto* codes = const_cast<std::byte*>(w.codes);
  codes[6 * 200 + 3] = std::byte{0x7f};
  codes[20 * 200 + 199] = std::byte{0xff};  // in the part of a chunk
  const std::vector<float> x = normals(random, 5 * 200);
  for (const Table& table : tables()) {
    const Inputs in = prepare(*table.kernels, w, ActQuant::kFp8, x, 5);
    for (const std::int64_t tokens : {1, 5}) {
      const std::vector<float> out = product(*table.kernels, w, in, 0, tokens, 0, 37, true);
      for (std::int64_t i = 0; i < tokens * 37; ++i)
        EXPECT_EQ(std::isnan(out[static_cast<std::size_t>(i)]), i % 37 == 6 || i % 37 == 20)
            << table.name << ", row " << i % 37;
    }
  }
}

// ---- integer inputs ----

// The value that column `col` of a record stands for.
float value_of(const simd::Digits& d, std::int64_t col) {
  const std::int64_t at = 32 * (col % 2) + col / 2;
  const int base = d.is_short != 0 ? 256 : 128;
  const int integer =
      d.digits[at] + base * d.digits[64 + at] + (d.is_short != 0 ? 0 : base * base * d.digits[128 + at]);
  return static_cast<float>(integer) *
         (d.scale * 2.0f);  // the record's scale is halved for the doubled weights
}

std::vector<float> digit_inputs(const std::string& kind, std::int64_t cols) {
  Random random(53);
  std::vector<float> x = normals(random, cols);
  if (kind == "tiny") std::fill(x.begin(), x.end(), 1e-6f);
  if (kind == "wide")  // magnitudes over the whole range of E4M3 and below it
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], -static_cast<int>(i % 24));
  if (kind == "zeros") std::fill(x.begin(), x.end(), -0.0f);
  if (kind == "huge")
    for (float& v : x) v *= 1e30f;
  return x;
}

TEST(SimdKernels, DigitsStandForTheQuantisedInput) {
  for (const Table& table : tables())
    for (const std::string kind : {"normal", "tiny", "wide", "zeros", "huge"})
      for (const std::int64_t cols : {16, 64, 96, 128, 200, 1120}) {
        std::vector<float> x = digit_inputs(kind, cols);
        const std::int64_t records = simd::padded_columns(cols) / 64;
        std::vector<simd::Digits> digits(static_cast<std::size_t>(records));
        table.kernels->quantize_digits(x.data(), cols, digits.data());
        quantize_dequantize_e4m3(x, 128);
        for (std::int64_t c = 0; c < records * 64; ++c) {
          const float expected = c < cols ? x[static_cast<std::size_t>(c)] : 0.0f;
          ASSERT_EQ(value_of(digits[static_cast<std::size_t>(c / 64)], c % 64), expected)
              << table.name << ", " << kind << ", column " << c << " of " << cols;
        }
        for (const simd::Digits& d : digits)
          for (int lane = 0; lane < 8; ++lane) {
            float sum = 0;
            for (int i = 8 * lane; i < 8 * lane + 8; ++i) sum += value_of(d, i) / (d.scale * 2.0f);
            ASSERT_EQ(static_cast<float>(d.offset[lane]), 12.0f * sum) << table.name << ", " << kind;
          }
      }
}

TEST(SimdKernels, DigitsTakeBothLengths) {
  for (const Table& table : tables()) {
    const std::vector<float> x = digit_inputs("wide", 1120), plain = digit_inputs("normal", 1120);
    std::vector<simd::Digits> wide(18), normal(18);
    table.kernels->quantize_digits(x.data(), 1120, wide.data());
    table.kernels->quantize_digits(plain.data(), 1120, normal.data());
    const auto shorts = [](const std::vector<simd::Digits>& d) {
      return std::count_if(d.begin(), d.end(), [](const simd::Digits& one) { return one.is_short != 0; });
    };
    EXPECT_LT(shorts(wide), 4) << table.name;
    EXPECT_GT(shorts(normal), 8) << table.name;
  }
}

TEST(SimdKernels, NanInputsMakeNanOutputs) {
  Random random(59);
  std::vector<std::shared_ptr<std::vector<std::byte>>> storage;
  const Matrix w = random_matrix(random, MatrixFormat::kFP4, ScaleFormat::kE8M0, 24, 256, storage);
  std::vector<float> x = normals(random, 2 * 256);
  x[70] = std::nanf("");
  for (const Table& table : tables()) {
    const Inputs in = prepare(*table.kernels, w, ActQuant::kFp8, x, 2);
    const std::vector<float> out = product(*table.kernels, w, in, 0, 2, 0, 24, true);
    for (std::size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(std::isnan(out[i]), i < 24) << table.name << " " << i;
  }
}

// An FP4 matrix cast to NVFP4 without loss computes what its source does, bit for bit.
TEST(SimdKernels, ALosslessCastChangesNoBit) {
  Random random(61);
  std::vector<std::shared_ptr<std::vector<std::byte>>> storage;
  const Matrix fp4 = random_matrix(random, MatrixFormat::kFP4, ScaleFormat::kE8M0, 70, 1120, storage);
  // Each group of 32 becomes two of 16 whose E4M3 scales are powers of two under one global scale.
  int largest = 0;
  for (std::int64_t i = 0; i < 70 * 35; ++i) largest = std::max(largest, static_cast<int>(fp4.scales[i]));
  std::vector<std::byte> scales;
  for (std::int64_t i = 0; i < 70 * 35; ++i) {
    const int exponent = static_cast<int>(fp4.scales[i]) - largest;  // at most 0
    ASSERT_GE(exponent, -6);
    scales.insert(scales.end(), 2, static_cast<std::byte>((7 + exponent) << 3));
  }
  Matrix nvfp4 = fp4;
  nvfp4.format = MatrixFormat::kNVFP4;
  nvfp4.scale_format = ScaleFormat::kE4M3;
  nvfp4.scales = scales.data();
  nvfp4.global_scale = std::ldexp(1.0f, largest - 127);
  const std::vector<float> x = normals(random, 6 * 1120);
  for (const Table& table : tables())
    for (const ActQuant act : {ActQuant::kFp8, ActQuant::kBf16})
      for (const std::int64_t tokens : {1, 6}) {
        const Inputs a = prepare(*table.kernels, fp4, act, x, tokens),
                     b = prepare(*table.kernels, nvfp4, act, x, tokens);
        EXPECT_TRUE(same_bits(product(*table.kernels, fp4, a, 0, tokens, 0, 70, false),
                              product(*table.kernels, nvfp4, b, 0, tokens, 0, 70, false)))
            << table.name << ", " << tokens << " tokens";
      }
}

// Cached rows are exact whatever they hold: every code, scales at both ends, NaN.
TEST(SimdKernels, CachedRowsUnpackToTheirValues) {
  Random random(79);
  const RowLayout layout = kv_packed_layout(512, 64);
  for (const std::string kind : {"plain", "all codes", "NaN", "small scale", "large scale", "zero scale"}) {
    std::vector<std::byte> data(static_cast<std::size_t>(layout.data_bytes)),
        scales(static_cast<std::size_t>(layout.scale_bytes));
    for (std::size_t i = 0; i < data.size(); ++i) {
      const unsigned code = static_cast<unsigned>(random()) & 0xffu;
      data[i] = static_cast<std::byte>(i < 448 && (code & 0x7fu) == 0x7fu ? 0x11u : code);
    }
    for (std::byte& scale : scales) scale = static_cast<std::byte>(110 + random() % 20);
    if (kind == "all codes")
      for (std::size_t i = 0; i < 448; ++i)
        data[i] = static_cast<std::byte>((i & 0x7fu) == 0x7fu ? 0u : i & 0xffu);
    if (kind == "NaN") data[100] = std::byte{0xff};
    if (kind == "small scale") scales[2] = std::byte{1};
    if (kind == "large scale") scales[3] = std::byte{250};
    if (kind == "zero scale") scales[1] = std::byte{0};
    std::vector<float> expected(512);
    unpack_row(layout, data.data(), scales.data(), expected.data());
    for (const Table& table : tables()) {
      std::vector<float> actual(512);
      table.kernels->unpack_row(layout, data.data(), scales.data(), actual.data());
      for (std::size_t i = 0; i < 512; ++i)
        if (std::isnan(expected[i]))
          EXPECT_TRUE(std::isnan(actual[i])) << table.name << ", " << kind << ", column " << i;
        else
          EXPECT_EQ(actual[i], expected[i]) << table.name << ", " << kind << ", column " << i;
    }
  }
}

// ---- AVX-512 against AVX2 ----

#ifdef PIVOT_HAVE_SIMDE
class Avx512 : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_avx2()) GTEST_SKIP() << "the stand-ins for AVX-512 are made of AVX2, which this CPU lacks";
  }
  const Kernels& narrow() { return simd::kernels(simd::Isa::kAvx2); }
  const Kernels& wide() { return simd::kEmulatedAvx512Kernels; }
};

TEST_F(Avx512, ProductsHaveTheBitsOfAvx2) {
  for (const Shape& shape : shapes()) {
    Random random(67);
    std::vector<std::shared_ptr<std::vector<std::byte>>> storage;
    const Matrix w = random_matrix(random, shape.format, shape.scale, shape.rows, shape.cols, storage);
    const std::vector<float> x = normals(random, kTokens * shape.cols);
    const Inputs a = prepare(narrow(), w, shape.act, x, kTokens),
                 b = prepare(wide(), w, shape.act, x, kTokens);
    EXPECT_EQ(a.memory.size(), b.memory.size());
    for (const std::int64_t tokens : std::initializer_list<std::int64_t>{1, 2, 5, kTokens})
      EXPECT_TRUE(same_bits(product(narrow(), w, a, 0, tokens, 1, shape.rows, false),
                            product(wide(), w, b, 0, tokens, 1, shape.rows, false)))
          << name_of(shape) << ", " << tokens << " tokens";
  }
}

TEST_F(Avx512, AttentionHasTheBitsOfAvx2) {
  Random random(71);
  const std::int64_t dim = 512;
  for (const std::int64_t heads : {1, 2, 3, 4, 5, 8, 13, 64})
    for (const std::int64_t count : {1, 2, 3, 25, 131}) {
      const std::vector<float> q = normals(random, heads * dim), data = normals(random, count * dim);
      std::vector<const float*> rows;
      for (std::int64_t i = 0; i < count; ++i) rows.push_back(data.data() + i * dim);
      std::vector<float> scores[2], o[2];
      const Kernels* both[2] = {&narrow(), &wide()};
      for (int k = 0; k < 2; ++k) {
        scores[k].resize(static_cast<std::size_t>(heads * count));
        o[k].resize(static_cast<std::size_t>(heads * dim));
        both[k]->row_scores(q.data(), heads, dim, rows.data(), count, 0.04f, scores[k].data(), count);
        for (std::int64_t h = 0; h < heads; ++h)
          both[k]->softmax(scores[k].data() + h * count, count, 0.5f, true);
        both[k]->weighted_rows(scores[k].data(), count, heads, dim, rows.data(), count, o[k].data());
      }
      EXPECT_TRUE(same_bits(scores[0], scores[1])) << heads << " heads, " << count << " rows";
      EXPECT_TRUE(same_bits(o[0], o[1])) << heads << " heads, " << count << " rows";
    }
}
#endif

// Index scores are exact integers under two scales: every table, any number of tiles.
TEST(SimdKernels, IndexScoresAreThoseOfTheirValues) {
  Random random(73);
  const std::int64_t heads = 5, width = 128;
  const RowLayout layout = index_fp4_layout(width);
  for (const std::int64_t keys : {3, 8, 9, 24, 40}) {
    std::vector<float> values = normals(random, keys * width), q = normals(random, heads * width),
                       weights = normals(random, heads);
    std::vector<std::byte> data(static_cast<std::size_t>(keys * layout.data_bytes)),
        scales(static_cast<std::size_t>(keys * layout.scale_bytes));
    for (std::int64_t i = 0; i < keys; ++i) {
      pack_row(layout, values.data() + i * width, data.data() + i * layout.data_bytes,
               scales.data() + i * layout.scale_bytes);
      unpack_row(layout, data.data() + i * layout.data_bytes, scales.data() + i * layout.scale_bytes,
                 values.data() + i * width);
    }
    quantize_dequantize_e2m1(q, 32);
    std::vector<float> expected;
    for (std::int64_t i = 0; i < keys; ++i) {
      float total = 0;
      for (std::int64_t h = 0; h < heads; ++h) {
        float dot = 0;
        for (std::int64_t g = 0; g < width; g += 32) {
          double part = 0;  // exact
          for (std::int64_t c = g; c < g + 32; ++c)
            part += static_cast<double>(q[static_cast<std::size_t>(h * width + c)]) *
                    values[static_cast<std::size_t>(i * width + c)];
          dot += static_cast<float>(part);
        }
        total += weights[static_cast<std::size_t>(h)] * std::max(dot, 0.0f);
      }
      expected.push_back(total);
    }
    for (const Table& table : tables()) {
      const std::int64_t num_tiles = (keys + 7) / 8;
      std::vector<simd::IndexTile> tiles(static_cast<std::size_t>(num_tiles));
      std::vector<simd::IndexQuery> queries(static_cast<std::size_t>(heads));
      for (std::int64_t h = 0; h < heads; ++h)
        ASSERT_TRUE(
            table.kernels->index_query(q.data() + h * width, width, &queries[static_cast<std::size_t>(h)]));
      for (std::int64_t t = 0; t < num_tiles; ++t) {
        const std::byte *rows[8] = {}, *row_scales[8] = {};
        for (std::int64_t i = 8 * t; i < std::min(keys, 8 * t + 8); ++i) {
          rows[i % 8] = data.data() + i * layout.data_bytes;
          row_scales[i % 8] = scales.data() + i * layout.scale_bytes;
        }
        table.kernels->index_tile(rows, row_scales, width, &tiles[static_cast<std::size_t>(t)]);
      }
      std::vector<float> scores(static_cast<std::size_t>(num_tiles * 8));
      table.kernels->index_scores(queries.data(), weights.data(), heads, width, tiles.data(), num_tiles,
                                  false, scores.data());
      scores.resize(static_cast<std::size_t>(keys));
      EXPECT_TRUE(same_bits(scores, expected)) << table.name << ", " << keys << " keys";
    }
  }
}

}  // namespace
}  // namespace pivot::test
