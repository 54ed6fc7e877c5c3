// What stands before and after the products of a long step: operands, and the sum of a token's experts.
//
// Bytes: x once, the operand once a destination; the sum reads chosen + 1 rows a token and writes one. Bound
// by memory.
#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = 4;  // of 128 columns, of one row, that a warp has in flight

// Where source row r goes: row `row[place[r * copies + k]]` of the operand for each k < copies; null is
// identity.
struct Destinations {
  const std::int32_t* place;
  const std::int32_t* row;
  int copies;
};

template <MatrixFormat F>
__global__ void __launch_bounds__(kThreads)
    operand_kernel(const BF16* x, int groups, std::int64_t stride, std::int64_t source_rows, bool fp8,
                   Destinations to, std::int64_t rows, std::uint16_t* out) {
  wait_for_predecessor();
  release_successor();
  const int lane = threadIdx.x % 32, chunks = (groups + kGroups - 1) / kGroups;
  // The warps of a CTA take the same columns of neighbouring rows, which are neighbours in a panel, too.
  const std::int64_t source = blockIdx.x / chunks * (kThreads / 32) + threadIdx.x / 32;
  const int first = static_cast<int>(blockIdx.x % chunks) * kGroups;
  if (source >= source_rows) return;
  // A lane owns four consecutive positions: two pairs of columns of panel lane / 16.
  const int panel = lane / 16, position = lane % 16 * 4;
  const std::uint16_t* from =
      reinterpret_cast<const std::uint16_t*>(x) + source * stride + panel * kGemmPanel;
  const int column[2] = {operand_column(F, position), operand_column(F, position + 2)};
  uint2 values[kGroups] = {};
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    if (first + g < groups) {
      const std::uint16_t* at = from + (first + g) * 128;
      values[g] = {*reinterpret_cast<const std::uint32_t*>(at + column[0]),
                   *reinterpret_cast<const std::uint32_t*>(at + column[1])};
    }
  if (fp8)
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint2& raw = values[g];
      const float v[4] = {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                          __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u)};
      float amax = 0.0f;
#pragma unroll
      for (float value : v) amax = fmaxf(amax, fabsf(value));
      const std::uint8_t byte = fp8_group_scale(group_amax(amax, 32));
      raw.x = pack_bf16x2(round_e4m3(v[0], byte), round_e4m3(v[1], byte));
      raw.y = pack_bf16x2(round_e4m3(v[2], byte), round_e4m3(v[3], byte));
    }
  for (int k = 0; k < to.copies; ++k) {
    std::int64_t row = source * to.copies + k;
    if (to.place != nullptr) row = to.place[row];
    if (to.row != nullptr) row = to.row[row];
    std::uint16_t* at = out + operand_offset(2 * first + panel, rows, row, position);
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (first + g < groups) *reinterpret_cast<uint2*>(at + 2 * g * rows * kGemmPanel) = values[g];
  }
}

void launch_operand(const void* x, std::int64_t source_rows, std::int64_t cols, std::int64_t stride,
                    MatrixFormat format, bool fp8, const Destinations& to, std::int64_t rows,
                    std::uint16_t* out, cudaStream_t stream) {
  require(cols % 128 == 0 && stride % 2 == 0, "columns in groups of 128");
  constexpr std::int64_t kRows = kThreads / 32;  // of a CTA
  const std::int64_t chunks = (cols / 128 + kGroups - 1) / kGroups;
  const Launch how{dim3(static_cast<unsigned>((source_rows + kRows - 1) / kRows * chunks)),
                   dim3(kThreads),
                   0,
                   stream,
                   true,
                   "gemm_operand"};
  // Two orders of columns: FP8 tiles permute blocks of 64, all others blocks of 32.
  const auto kernel =
      format == MatrixFormat::kFP8 ? operand_kernel<MatrixFormat::kFP8> : operand_kernel<MatrixFormat::kFP4>;
  launch(how, kernel, static_cast<const BF16*>(x), static_cast<int>(cols / 128), stride, source_rows, fp8, to,
         rows, out);
}

// Routed experts in ascending id, then the shared one, one rounding. A thread takes eight columns.
__global__ void __launch_bounds__(kThreads) sum_kernel(ExpertArguments a) {
  wait_for_predecessor();
  release_successor();
  const int pieces = a.width / 8;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::int64_t>(a.tokens) * pieces) return;
  const std::int64_t token = i / pieces, piece = i % pieces;
  const auto* partial = static_cast<const uint4*>(a.partial);
  float sum[8] = {};
  const auto add = [&](std::int64_t row) {
    const uint4 v = __ldg(partial + row * pieces + piece);
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      sum[2 * p] += __uint_as_float(words[p] << 16);
      sum[2 * p + 1] += __uint_as_float(words[p] & 0xffff0000u);
    }
  };
#pragma unroll 2
  for (int k = 0; k < a.chosen; ++k) add(a.list.place[token * a.chosen + k]);
  add(static_cast<std::int64_t>(a.tokens) * a.chosen + token);
  static_cast<uint4*>(a.out)[i] = {pack_bf16x2(sum[0], sum[1]), pack_bf16x2(sum[2], sum[3]),
                                   pack_bf16x2(sum[4], sum[5]), pack_bf16x2(sum[6], sum[7])};
}

}  // namespace

void launch_gemm_operand(const void* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                         MatrixFormat format, bool fp8, std::uint16_t* out, cudaStream_t stream) {
  launch_operand(x, rows, cols, stride, format, fp8, {nullptr, nullptr, 1}, operand_rows(rows), out, stream);
}

void launch_expert_operand(const ExpertArguments& a, const ExpertRows& rows, const void* x, bool by_place,
                           std::int32_t cols, bool fp8, std::uint16_t* out, cudaStream_t stream) {
  const std::int64_t pairs = static_cast<std::int64_t>(a.tokens) * a.chosen;
  const Destinations to =
      by_place ? Destinations{nullptr, rows.row, 1} : Destinations{a.list.place, rows.row, a.chosen};
  launch_operand(x, by_place ? pairs : a.tokens, cols, cols, a.routed_format, fp8, to, rows.rows, out,
                 stream);
}

void launch_gemm_expert_sum(const ExpertArguments& a, cudaStream_t stream) {
  require(a.width % 8 == 0 && a.list.place != nullptr, "a work list and columns in groups of 8");
  const std::int64_t threads = static_cast<std::int64_t>(a.tokens) * (a.width / 8);
  launch({dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream, true,
          "gemm_expert_sum"},
         sum_kernel, a);
}

}  // namespace pivot::cuda
