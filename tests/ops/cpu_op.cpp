// One hot operator of the CPU back-end, once, on fixed inputs: cpu_op OP [ISA], or without arguments their
// names. bench/cpu_instructions.py counts the instructions of measured() with callgrind.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "numeric/row_layout.h"
#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/linear.h"
#include "ops/cpu/simd/topk.h"

namespace pivot::simd {
namespace {

[[gnu::noinline]] void measured(const std::function<void()>& work) { work(); }

std::uint32_t next_random() {
  static std::uint32_t state = 12345;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}
std::vector<float> floats_of(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(next_random() % 20011) * 1e-4f - 1.0f;
  return values;
}

// W [rows, cols] times `tokens` rows, quantised as the format's default activations are.
void product(const Kernels& kernels, MatrixFormat format, ScaleFormat scale, std::int64_t tokens) {
  constexpr std::int64_t kRows = 256, kCols = 2048;
  Matrix w;
  w.format = format;
  w.scale_format = scale;
  w.rows = kRows;
  w.cols = kCols;
  std::vector<std::byte> codes(static_cast<std::size_t>(w.code_bytes())),
      scales(static_cast<std::size_t>(w.scale_bytes()));
  // Neither NaN nor subnormal as E4M3, finite as BF16, any E2M1.
  for (std::byte& code : codes)
    code = static_cast<std::byte>((next_random() & 0x87u) | (4u + next_random() % 10u) << 3);
  for (std::byte& one : scales) one = scale == ScaleFormat::kE4M3 ? std::byte{0x38} : std::byte{118};
  w.codes = codes.data();
  w.scales = scales.data();
  const std::vector<float> x = floats_of(tokens * kCols);
  const InputKind kind = input_kind(w, ActQuant::kFp8);
  std::vector<float> memory(static_cast<std::size_t>(tokens * kCols + 16)), temporary(kCols);
  auto* base = reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  std::vector<const float*> rows;
  for (std::int64_t t = 0; t < tokens; ++t) {
    prepare_row(kernels, kind, x.data() + t * kCols, kCols, temporary.data(), base + t * kCols);
    rows.push_back(base + t * kCols);
  }
  std::vector<float> out(static_cast<std::size_t>(tokens * kRows));
  measured([&] { kernels.linear(w, kind.order, 0, kRows, rows.data(), tokens, out.data(), kRows, true); });
}

void attention(const Kernels& kernels) {
  constexpr std::int64_t kHeads = 8, kRows = 384, kDim = 512;
  const std::vector<float> q = floats_of(kHeads * kDim), data = floats_of(kRows * kDim);
  std::vector<const float*> rows;
  for (std::int64_t i = 0; i < kRows; ++i) rows.push_back(data.data() + i * kDim);
  std::vector<float> scores(kHeads * kRows), o(kHeads * kDim);
  measured([&] {
    kernels.row_scores(q.data(), kHeads, kDim, rows.data(), kRows, 0.04f, scores.data(), kRows);
    for (std::int64_t h = 0; h < kHeads; ++h) kernels.softmax(scores.data() + h * kRows, kRows, 0.0f, true);
    kernels.weighted_rows(scores.data(), kRows, kHeads, kDim, rows.data(), kRows, o.data());
  });
}

void unpack(const Kernels& kernels) {
  const RowLayout layout = kv_packed_layout(512, 64);
  std::vector<std::byte> data(static_cast<std::size_t>(layout.data_bytes), std::byte{0x35}),
      scales(static_cast<std::size_t>(layout.scale_bytes), std::byte{120});
  std::vector<float> row(512);
  measured([&] {
    for (int i = 0; i < 256; ++i) kernels.unpack_row(layout, data.data(), scales.data(), row.data());
  });
}

void index(const Kernels& kernels) {
  constexpr std::int64_t kHeads = 8, kWidth = 128, kTiles = 64;
  const RowLayout layout = index_fp4_layout(kWidth);
  std::vector<std::byte> data(static_cast<std::size_t>(8 * layout.data_bytes)),
      scales(static_cast<std::size_t>(8 * layout.scale_bytes), std::byte{127});
  for (std::byte& one : data) one = static_cast<std::byte>(next_random());
  std::vector<float> q = floats_of(kWidth);
  kernels.quantize_e2m1(q.data(), kWidth, 32);
  std::vector<IndexQuery> queries(kHeads);
  for (IndexQuery& query : queries) kernels.index_query(q.data(), kWidth, &query);
  const std::vector<float> weights = floats_of(kHeads);
  std::vector<float> scores(8 * kTiles);
  std::vector<IndexTile> tiles(kTiles);
  measured([&] {
    for (IndexTile& tile : tiles) {
      const std::byte *rows[8], *row_scales[8];
      for (std::int64_t i = 0; i < 8; ++i) {
        rows[i] = data.data() + i * layout.data_bytes;
        row_scales[i] = scales.data() + i * layout.scale_bytes;
      }
      kernels.index_tile(rows, row_scales, kWidth, &tile);
    }
    kernels.index_scores(queries.data(), weights.data(), kHeads, kWidth, tiles.data(), kTiles, false,
                         scores.data());
  });
}

void topk() {
  const std::vector<float> scores = floats_of(8192);
  std::vector<std::int32_t> selected(512);
  TopkScratch scratch;
  select_topk(scores.data(), 8192, 512, selected.data(), scratch);  // makes the scratch memory
  measured([&] { select_topk(scores.data(), 8192, 512, selected.data(), scratch); });
}

void quantize(const Kernels& kernels) {
  const std::vector<float> x = floats_of(4096);
  std::vector<Digits> digits(64);
  measured([&] { kernels.quantize_digits(x.data(), 4096, digits.data()); });
}

using Op = std::function<void(const Kernels&)>;
std::map<std::string, Op> ops() {
  std::map<std::string, Op> all = {{"attention", attention},
                                   {"index_scores", index},
                                   {"quantize_digits", quantize},
                                   {"topk", [](const Kernels&) { topk(); }},
                                   {"unpack_kv", unpack}};
  const auto add = [&](const std::string& name, MatrixFormat format, ScaleFormat scale) {
    for (const std::int64_t tokens : {1, 8, 96})
      all[fmt::format("linear_{}_{}", name, tokens)] = [=](const Kernels& k) {
        product(k, format, scale, tokens);
      };
  };
  add("fp4", MatrixFormat::kFP4, ScaleFormat::kE8M0);
  add("nvfp4", MatrixFormat::kNVFP4, ScaleFormat::kE4M3);
  add("fp8", MatrixFormat::kFP8, ScaleFormat::kE8M0);
  add("bf16", MatrixFormat::kBF16, ScaleFormat::kNone);
  return all;
}

}  // namespace
}  // namespace pivot::simd

int main(int argc, char** argv) {
  using namespace pivot::simd;
  const auto all = ops();
  if (argc < 2) {
    for (const auto& [name, op] : all) fmt::print("{}\n", name);
    return 0;
  }
  const auto found = all.find(argv[1]);
  const auto isa = argc > 2 ? parse_isa(argv[2]) : supported_isas().back();
  bool runs = false;
  for (const Isa one : supported_isas()) runs = runs || (isa && one == *isa);
  if (found == all.end() || !runs) {
    fmt::print(stderr, "usage: cpu_op OP [ISA]; without arguments it prints the names of the operators\n");
    return 64;
  }
  found->second(kernels(*isa));
  return 0;
}
