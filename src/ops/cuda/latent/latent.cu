// qr = rms(a, q_norm); kv = Q8(rope(rms(kv_raw, kv_norm))); compressor entries; the window ring.
//
// Bytes per token: a few KB; bound by launch latency. One CTA per (token, part), one thread per element of a
// row. Where every sequence has one token, one launch does it all: a compressor's CTA then emits the entry
// and stores the state, since no other token of the step reads the ring row it overwrites (the state keeps
// the `rows` tokens before). Steps with longer spans store their states in a second launch.
#include "ops/cuda/latent/latent.h"

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/device/rows.cuh"
#include "ops/cuda/latent/window.cuh"
#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {
namespace {

// cos and sin of fp32(position) * w for the thread's pair of a rotary tail: the product is rounded to fp32
// first (specification 2.3). REQUIRES: at most two dims a thread.
struct Turn {
  float s = 0.0f, c = 1.0f;

  __device__ __forceinline__ Turn(int rope, float position, const float* frequencies) {
    if (static_cast<int>(threadIdx.x) < rope / 2) sincosf(position * frequencies[threadIdx.x], &s, &c);
  }
};

// The row is in `row` (shared memory, one element per thread stride, there for all threads); rounds pairs of
// the rotary tail.
__device__ void rotate_tail(float* row, int width, int rope, const Turn& turn) {
  if (const int i = static_cast<int>(threadIdx.x); i < rope / 2) {
    float& a = row[width - rope + 2 * i];
    float& b = row[width - rope + 2 * i + 1];
    const float x = a * turn.c - b * turn.s;
    b = round_bf16(a * turn.s + b * turn.c);
    a = round_bf16(x);
  }
  __syncthreads();
}

__device__ void norm_row(const float* in, const float* weight, int count, float eps, float* scratch,
                         float* out) {
  float square = 0.0f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) square += in[i] * in[i];
  const float factor = 1.0f / sqrtf(block_sum(square, scratch) / static_cast<float>(count) + eps);
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = round_bf16(in[i] * factor * weight[i]);
  __syncthreads();
}

constexpr int kThreads = 256;

struct RowScratch {
  float row[kMaxRow], sums[32];
  std::uint8_t bytes[kMaxRow / 32];
};

// part 0: qr; part 1: kv and the index weights. Waits for the kernel before.
__device__ void latent_part(const LatentArguments& a, std::int64_t t, int part, RowScratch& shared) {
  const Turn turn(part == 1 ? a.rope : 0, static_cast<float>(a.batch.positions[t]), a.frequencies);
  wait_for_predecessor();
  release_successor();
  float* row = shared.row;
  float* scratch = shared.sums;
  std::uint8_t* bytes = shared.bytes;
  if (part == 0) {
    for (int i = threadIdx.x; i < a.rank; i += kThreads) row[i] = load_bf16(a.a, t * a.rank + i);
    __syncthreads();
    norm_row(row, a.q_norm, a.rank, a.eps, scratch, row);
    for (int i = threadIdx.x; i < a.rank; i += kThreads) store_bf16(a.qr, t * a.rank + i, row[i]);
    if (a.qr_values == nullptr) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int g = warp; g * 128 < a.rank; g += kThreads / 32) {
      float amax = 0.0f;
      for (int i = lane; i < 128; i += 32) amax = fmaxf(amax, fabsf(row[g * 128 + i]));
      const float scale = e8m0_to_float(fp8_group_scale(group_amax(amax, 32)));
      for (int i = lane; i < 128; i += 32)
        a.qr_values[t * a.rank + g * 128 + i] =
            static_cast<std::uint16_t>(e4m3x2_to_f16x2(float_to_e4m3(row[g * 128 + i] / scale)) & 0xffffu);
      if (lane == 0) a.qr_scales[t * (a.rank / 128) + g] = scale;
    }
    return;
  }
  const int nope = a.head_dim - a.rope;
  for (int i = threadIdx.x; i < a.head_dim; i += kThreads) row[i] = load_bf16(a.kv_raw, t * a.head_dim + i);
  __syncthreads();
  norm_row(row, a.kv_norm, a.head_dim, a.eps, scratch, row);
  rotate_tail(row, a.head_dim, a.rope, turn);
  if (a.round_kv) {
    round_groups<true>(row, nope, kKvGroup, bytes);
    const int groups = (nope + kKvGroup - 1) / kKvGroup;
    if (a.kv_scales != nullptr && static_cast<int>(threadIdx.x) < groups)
      a.kv_scales[t * groups + threadIdx.x] = bytes[threadIdx.x];
  }
  for (int i = threadIdx.x; i < a.head_dim; i += kThreads) store_bf16(a.kv, t * a.head_dim + i, row[i]);
  if (a.index_weights != nullptr)
    for (int i = threadIdx.x; i < a.index_heads; i += kThreads)
      a.index_weights[t * a.index_heads + i] =
          round_bf16(load_bf16(a.index_raw, t * a.index_heads + i) * a.index_scale);
}

// k and s of position p: from the step where the step has it, else from the state ring. `first`: the first
// position of p's block or of the one after it.
struct CompressorRow {
  const float* k;
  const float* s;
  const float* ape;  // to add to s, or null
};
__device__ __forceinline__ CompressorRow compressor_row(const CompressArguments& a, const SequenceSpan& span,
                                                        int position, int first) {
  const int width = a.state.width, in_block = position - first + (position < first ? a.ratio : 0);
  if (position >= span.start_position) {
    const std::int64_t token = span.first_token + (position - span.start_position);
    return {a.k + token * width, a.score + token * width,
            a.ape + static_cast<std::int64_t>(in_block) * width};
  }
  const float* row = a.state.base + span.slot * a.state.slot_floats +
                     static_cast<std::int64_t>(position % a.state.rows) * 2 * width;
  return {row, row + width, nullptr};
}
__device__ __forceinline__ float score_of(const CompressorRow& row, int c) {
  return row.ape == nullptr ? row.s[c] : row.s[c] + row.ape[c];
}

constexpr int kMaxCompressorWidth = 512;
constexpr int kFewRows = 8;    // of the overlapping blocks of ratio 4
constexpr int kRowBatch = 16;  // of longer blocks, on their way together

// Softmax of the scores of rows begin .. first + ratio - 1 in column c of an entry, times their k. Columns of
// rows before `first` are c, of others own + c. Sums run in ascending row order, whatever is loaded together.
__device__ float few_rows(const CompressArguments& a, const SequenceSpan& span, int begin, int first, int own,
                          int c) {
  const int end = first + a.ratio;
  float s[kFewRows], k[kFewRows];
#pragma unroll
  for (int i = 0; i < kFewRows; ++i) {
    const int p = end - kFewRows + i, column = p < first ? c : own + c;
    s[i] = k[i] = 0.0f;
    if (p < begin) continue;
    const CompressorRow r = compressor_row(a, span, p, first);
    s[i] = score_of(r, column);
    k[i] = r.k[column];
  }
  float maximum = -INFINITY, sum = 0.0f, value = 0.0f;
#pragma unroll
  for (int i = 0; i < kFewRows; ++i)
    if (end - kFewRows + i >= begin) maximum = fmaxf(maximum, s[i]);
#pragma unroll
  for (int i = 0; i < kFewRows; ++i)
    if (end - kFewRows + i >= begin) sum += s[i] = expf(s[i] - maximum);
#pragma unroll
  for (int i = 0; i < kFewRows; ++i)
    if (end - kFewRows + i >= begin) value += s[i] / sum * k[i];
  return value;
}
// Scores of up to kRowBatch rows from p on; VALUES: their k, too.
template <bool VALUES>
__device__ __forceinline__ void load_rows(const CompressArguments& a, const SequenceSpan& span, int p,
                                          int first, int end, int column, float (&s)[kRowBatch],
                                          float (&k)[kRowBatch]) {
#pragma unroll
  for (int i = 0; i < kRowBatch; ++i) {
    if (p + i >= end) continue;
    const CompressorRow r = compressor_row(a, span, p + i, first);
    s[i] = score_of(r, column);
    if (VALUES) k[i] = r.k[column];
  }
}
// Without an overlap: begin is first.
__device__ float many_rows(const CompressArguments& a, const SequenceSpan& span, int first, int c) {
  const int end = first + a.ratio;
  float s[kRowBatch], k[kRowBatch];
  float maximum = -INFINITY, sum = 0.0f, value = 0.0f;
  for (int p = first; p < end; p += kRowBatch) {
    load_rows<false>(a, span, p, first, end, c, s, k);
#pragma unroll
    for (int i = 0; i < kRowBatch; ++i)
      if (p + i < end) maximum = fmaxf(maximum, s[i]);
  }
  for (int p = first; p < end; p += kRowBatch) {
    load_rows<false>(a, span, p, first, end, c, s, k);
#pragma unroll
    for (int i = 0; i < kRowBatch; ++i)
      if (p + i < end) sum += expf(s[i] - maximum);
  }
  for (int p = first; p < end; p += kRowBatch) {
    load_rows<true>(a, span, p, first, end, c, s, k);
#pragma unroll
    for (int i = 0; i < kRowBatch; ++i)
      if (p + i < end) value += expf(s[i] - maximum) / sum * k[i];
  }
  return value;
}

// The entry that token t completes, if it does.
__device__ void compress_token(const CompressArguments& a, int t, RowScratch& shared) {
  float* row = shared.row;
  float* scratch = shared.sums;
  std::uint8_t* bytes = shared.bytes;
  const int position = a.batch.positions[t];
  if ((position + 1) % a.ratio != 0) return;
  const SequenceSpan span = a.batch.spans[a.batch.span_of[t]];
  const int entry = position / a.ratio, first = entry * a.ratio;
  const bool overlap = a.ratio == 4;
  const int own = overlap ? a.width : 0;  // column offset of the own block's series
  for (int c = threadIdx.x; c < a.width; c += kThreads)
    row[c] = round_bf16(overlap ? few_rows(a, span, entry > 0 ? first - a.ratio : first, first, own, c)
                                : many_rows(a, span, first, c));
  __syncthreads();
  norm_row(row, a.norm, a.width, a.eps, scratch, row);
  rotate_tail(row, a.width, a.rope, Turn(a.rope, static_cast<float>(first), a.frequencies));

  const RowAddress out = paged_row(a.out, span.table, entry);
  const RowLayout& layout = a.out.layout;
  if (!a.index_key) {
    const int nope = a.width - a.rope;
    if (a.round_kv) round_groups<true>(row, nope, kKvGroup, bytes);
    if (layout.format == RowFormat::kBf16) {
      for (int i = threadIdx.x; i < a.width; i += kThreads) store_bf16(out.data, i, row[i]);
      return;
    }
    for (int i = threadIdx.x; i < nope; i += kThreads)
      out.data[i] = float_to_e4m3(row[i] / e8m0_to_float(bytes[i / kKvGroup]));
    for (int i = threadIdx.x; i < a.rope; i += kThreads) store_bf16(out.data + nope, i, row[nope + i]);
    const int groups = (nope + kKvGroup - 1) / kKvGroup;
    for (int i = threadIdx.x; i < layout.scale_bytes; i += kThreads)
      out.scales[i] = i < groups ? bytes[i] : std::uint8_t{0};
    return;
  }
  // Walsh-Hadamard, natural order, one round trip through shared memory a stage (log2(width) of them).
  for (int step = 1; step < a.width; step *= 2) {
    float x = 0.0f, y = 0.0f;
    const int i = threadIdx.x;
    const int low = i / step * step * 2 + i % step;
    if (i < a.width / 2) {
      x = row[low];
      y = row[low + step];
    }
    __syncthreads();
    if (i < a.width / 2) {
      row[low] = x + y;
      row[low + step] = x - y;
    }
    __syncthreads();
  }
  const float norm = 1.0f / sqrtf(static_cast<float>(a.width));
  for (int i = threadIdx.x; i < a.width; i += kThreads) row[i] = round_bf16(row[i] * norm);
  __syncthreads();
  if (a.index_rounding == IndexRounding::kFp4) round_groups<false>(row, a.width, kIndexFp4Group, bytes);
  if (a.index_rounding == IndexRounding::kFp8) round_groups<true>(row, a.width, a.width, bytes);
  switch (layout.format) {
    case RowFormat::kIndexFp4:
      for (int i = threadIdx.x; i < a.width / 2; i += kThreads) {
        const float scale = e8m0_to_float(bytes[2 * i / kIndexFp4Group]);
        out.data[i] = static_cast<std::uint8_t>(float_to_e2m1(row[2 * i] / scale) |
                                                float_to_e2m1(row[2 * i + 1] / scale) << 4);
      }
      for (int i = threadIdx.x; i < a.width / kIndexFp4Group; i += kThreads) out.scales[i] = bytes[i];
      break;
    case RowFormat::kIndexFp8:
      for (int i = threadIdx.x; i < a.width; i += kThreads)
        out.data[i] = float_to_e4m3(row[i] / e8m0_to_float(bytes[0]));
      if (threadIdx.x == 0) *reinterpret_cast<float*>(out.scales) = e8m0_to_float(bytes[0]);
      break;
    default:
      for (int i = threadIdx.x; i < a.width; i += kThreads) store_bf16(out.data, i, row[i]);
  }
}

// The state keeps the last `rows` tokens of each sequence.
__device__ void commit_state(const CompressArguments& a, std::int64_t t) {
  const SequenceSpan span = a.batch.spans[a.batch.span_of[t]];
  if (t - span.first_token < span.num_tokens - a.state.rows) return;
  const int position = a.batch.positions[t], width = a.state.width;
  float* row = a.state.base + span.slot * a.state.slot_floats +
               static_cast<std::int64_t>(position % a.state.rows) * 2 * width;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    row[c] = a.k[t * width + c];
    row[width + c] =
        a.score[t * width + c] + a.ape[static_cast<std::int64_t>(position % a.ratio) * width + c];
  }
}

__global__ void __launch_bounds__(kThreads) latent_kernel(const __grid_constant__ LatentArguments a) {
  __shared__ RowScratch shared;
  latent_part(a, blockIdx.x, blockIdx.y, shared);
}

__global__ void __launch_bounds__(kThreads)
    latent_step_kernel(const __grid_constant__ LatentArguments a,
                       const __grid_constant__ CompressArguments first,
                       const __grid_constant__ CompressArguments second) {
  __shared__ RowScratch shared;
  const int part = blockIdx.y;
  if (part < 2) return latent_part(a, blockIdx.x, part, shared);
  wait_for_predecessor();
  release_successor();
  const CompressArguments& c = part == 2 ? first : second;
  commit_state(c, blockIdx.x);
  compress_token(c, blockIdx.x, shared);
}

// Tokens a CTA looks at: most of them complete no entry.
__host__ __device__ constexpr int tokens_of_cta(int ratio) { return ratio < 32 ? ratio : 32; }

__global__ void __launch_bounds__(kThreads) compress_kernel(const __grid_constant__ CompressArguments a) {
  __shared__ RowScratch shared;
  wait_for_predecessor();
  release_successor();
  const int lane = threadIdx.x % 32, each = tokens_of_cta(a.ratio), first = blockIdx.x * each;
  const int t = first + lane;
  const bool completes = lane < each && t < a.batch.num_tokens && (a.batch.positions[t] + 1) % a.ratio == 0;
  for (unsigned left = __ballot_sync(0xffffffffu, completes); left != 0; left &= left - 1) {
    compress_token(a, first + __ffs(static_cast<int>(left)) - 1, shared);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) commit_state_kernel(const __grid_constant__ CompressArguments a) {
  wait_for_predecessor();
  release_successor();
  commit_state(a, blockIdx.x);
}

__global__ void __launch_bounds__(128) commit_window_kernel(const __grid_constant__ WindowArguments a) {
  __shared__ WindowScratch shared;
  wait_for_predecessor();
  release_successor();
  commit_window(a, blockIdx.x, shared);
}

unsigned tokens(const StepBatch& batch) { return static_cast<unsigned>(batch.num_tokens); }

}  // namespace

void launch_latent(const LatentArguments& a, cudaStream_t stream) {
  require(a.rank <= kMaxRow && a.head_dim <= kMaxRow && a.rank % 128 == 0 && a.rope <= 2 * kThreads,
          "q_lora_rank and head_dim up to 2048, at most 512 rotary dims");
  launch({dim3(tokens(a.batch), 2), dim3(kThreads), 0, stream, true, "latent"}, latent_kernel, a);
}

void launch_compress(const CompressArguments& a, cudaStream_t stream) {
  require(a.width <= kMaxCompressorWidth && a.width % 64 == 0, "a compressor width of at most 512");
  const auto each = static_cast<unsigned>(tokens_of_cta(a.ratio));
  launch({dim3((tokens(a.batch) + each - 1) / each), dim3(kThreads), 0, stream, true, "compress"},
         compress_kernel, a);
  launch({dim3(tokens(a.batch)), dim3(kThreads), 0, stream, true, "commit_state"}, commit_state_kernel, a);
}

void launch_latent_step(const LatentArguments& a, std::span<const CompressArguments> compressors,
                        cudaStream_t stream) {
  require(a.rank <= kMaxRow && a.head_dim <= kMaxRow && a.rank % 128 == 0 && a.rope <= 2 * kThreads &&
              compressors.size() <= 2,
          "q_lora_rank and head_dim up to 2048, at most 512 rotary dims and two compressors");
  for (const CompressArguments& c : compressors)
    require(c.width <= kMaxCompressorWidth && c.width % 64 == 0, "a compressor width of at most 512");
  const CompressArguments none;
  launch({dim3(tokens(a.batch), 2 + static_cast<unsigned>(compressors.size())), dim3(kThreads), 0, stream,
          true, "latent_step"},
         latent_step_kernel, a, compressors.empty() ? none : compressors[0],
         compressors.size() < 2 ? none : compressors[1]);
}

void launch_commit_window(const WindowArguments& a, cudaStream_t stream) {
  require(a.ring.layout.width <= kMaxRow, "head_dim up to 2048");
  launch({dim3(tokens(a.batch)), dim3(128), 0, stream, true, "commit_window"}, commit_window_kernel, a);
}

}  // namespace pivot::cuda
