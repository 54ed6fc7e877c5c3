// Laboratory: the prefill products (src/ops/cuda/gemm) against fp64, whole steps against their tokens in
// slices bit for bit, and their times. What is measured is what ships: the program links the project's own
// objects (README.md).
//
//   gemm check     ragged token counts, every format, uneven experts; ends with 1 at any difference
//   gemm time      the model's shapes at 2,048 and 8,192 tokens
//   gemm           both
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/device/numeric.cuh"
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/placement/random_fill.h"
#include "ops/cuda/runtime/launch.h"

#include "lab.h"

namespace pivot::cuda {

namespace {

constexpr double kAttainable = 790.0;  // TFLOP/s in BF16 on an H200

// ---- weights ----

class Weights {
 public:
  Weights(MatrixFormat format, std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    const std::int64_t tiles = rows / kTileRows * (cols / kTileCols);
    codes_ = std::make_unique<Buffer<std::byte>>(tiles * tile_code_bytes(format));
    scales_ = std::make_unique<Buffer<std::byte>>(tiles * tile_scale_bytes(format));
    m.format = format;
    m.scale_format = format == MatrixFormat::kFP8 ? ScaleFormat::kE8M0 : ScaleFormat::kNone;
    m.rows = rows;
    m.cols = cols;
    m.codes = codes_->get();
    m.scales = scales_->get();
    if (format == MatrixFormat::kNVFP4) m.global_scale = 0.0371f * (1.0f + static_cast<float>(seed % 3));
    launch_random_tiles(m, codes_->get(), scales_->get(), seed, nullptr);
  }
  Matrix m;

 private:
  std::unique_ptr<Buffer<std::byte>> codes_, scales_;
};

const char* name_of(MatrixFormat format) {
  return format == MatrixFormat::kBF16  ? "bf16"
         : format == MatrixFormat::kFP8 ? "fp8"
         : format == MatrixFormat::kFP4 ? "fp4"
                                        : "nvfp4";
}

// ---- fp64, from the description of tiles (placement/tile_format.h) and nothing else of the product ----

__device__ double weight_at(MatrixFormat format, const std::uint8_t* codes, const std::uint8_t* scales,
                            int tiles_k, std::int64_t row, int column) {
  const std::int64_t tile = row / 16 * tiles_k + column / 128;
  const int r = static_cast<int>(row % 16), c = column % 128, half = r / 8 * 512, g = r % 8 * 4;
  switch (format) {
    case MatrixFormat::kBF16: {
      const std::uint8_t* p = codes + tile * 4096 + c / 32 * 1024 + half + (g + c % 32 / 8) * 16 + c % 8 * 2;
      return __uint_as_float(static_cast<std::uint32_t>(p[0] | p[1] << 8) << 16);
    }
    case MatrixFormat::kFP8: {
      const std::uint8_t code = codes[tile * 2048 + c / 64 * 1024 + half + (g + c % 64 / 16) * 16 + c % 16];
      const int e = code >> 3 & 15, m = code & 7;
      const double v = e == 0 ? ldexp(static_cast<double>(m), -9) : ldexp(8.0 + m, e - 10);
      return (code & 128 ? -v : v) * reinterpret_cast<const float*>(scales)[tile];
    }
    default: {
      // Columns 0, 1: A of bytes 1, 3; 2, 3: A of bytes 0, 2; 4, 5: B of bytes 1, 3; 6, 7: B of bytes 0, 2.
      const int k = c % 8, byte = (k / 2 % 2 == 0 ? 1 : 0) + k % 2 * 2;
      const std::uint8_t two = codes[tile * 1024 + half + (g + c % 32 / 8) * 16 + c / 32 * 4 + byte];
      const int magnitude = k < 4 ? two >> 1 & 7 : two >> 4 & 7, sign = k < 4 ? two >> 7 : two & 1;
      const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      double scale;
      if (format == MatrixFormat::kFP4) {
        scale = ldexp(1.0, scales[tile * 64 + r * 4 + c / 32] - 127);
      } else {
        const std::uint8_t s = scales[tile * 128 + r * 8 + c / 16];
        scale = (s >> 3) == 0 ? ldexp(static_cast<double>(s & 7), -9) : ldexp(8.0 + (s & 7), (s >> 3) - 10);
      }
      return (sign ? -values[magnitude] : values[magnitude]) * scale;
    }
  }
}

// worst = max over [tokens][rows] of |y - W x| / allowed; x: BF16 [tokens][cols]. Allowed: one BF16 rounding
// and fp32 sums, whose adders in the tensor cores drop bits.
__global__ void fp64_kernel(Matrix w, float post, const std::uint16_t* x, const void* y, bool bf16,
                            std::int64_t stride, int tokens, unsigned long long* worst) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= w.rows * tokens) return;
  const std::int64_t row = i % w.rows, token = i / w.rows;
  double sum = 0, size = 0;
  for (int c = 0; c < w.cols; ++c) {
    const double p =
        weight_at(w.format, reinterpret_cast<const std::uint8_t*>(w.codes),
                  reinterpret_cast<const std::uint8_t*>(w.scales), static_cast<int>(w.cols / 128), row, c) *
        __uint_as_float(static_cast<std::uint32_t>(x[token * w.cols + c]) << 16) * post;
    sum += p;
    size += fabs(p);
  }
  const double got =
      bf16 ? __uint_as_float(
                 static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(y)[token * stride + row]) << 16)
           : static_cast<const float*>(y)[token * stride + row];
  const double allowed = fabs(sum) * (bf16 ? 0x1p-8 : 0x1p-20) + size * 0x1p-17 + 1e-30;
  double ratio = fabs(got - sum) / allowed;
  if (!(ratio == ratio)) ratio = 1e30;
  atomicMax(worst, static_cast<unsigned long long>(__double_as_longlong(ratio)));
}
double fp64_ratio(const Matrix& w, float post, const std::uint16_t* x, const void* y, bool bf16,
                  std::int64_t stride, int tokens) {
  Buffer<unsigned long long> worst(std::vector<unsigned long long>{0});
  if (tokens == 0) return 0;
  fp64_kernel<<<static_cast<unsigned>((w.rows * tokens + 255) / 256), 256>>>(w, post, x, y, bf16, stride,
                                                                             tokens, worst.get());
  require_cuda(cudaDeviceSynchronize(), "the fp64 product");
  const unsigned long long bits = worst.host()[0];
  double ratio;
  std::memcpy(&ratio, &bits, 8);
  return ratio;
}

// The same for hidden = bf(silu(min(g, limit)) clamp(u) weight) with g and u rounded to BF16: an error of g
// passes through silu's slope (its second derivative is at most 1/2), one of u through silu(g). tokens: of
// each place; null: the place itself. pairs, weights: of each place; null: weight 1.
struct Up {
  Matrix w1, w3;
  float post1, post3, limit;
  const std::uint16_t* x;
  const std::int32_t *tokens, *pairs;
  const float* weights;
  const std::uint16_t* hidden;
  int count;
};
__global__ void fp64_up_kernel(Up a, unsigned long long* worst) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.w1.rows * a.count) return;
  const std::int64_t row = i % a.w1.rows, place = i / a.w1.rows;
  const std::uint16_t* x = a.x + (a.tokens == nullptr ? place : a.tokens[place]) * a.w1.cols;
  double sum[2] = {}, error[2] = {};
  for (int k = 0; k < 2; ++k) {
    const Matrix& w = k == 0 ? a.w1 : a.w3;
    for (int c = 0; c < w.cols; ++c) {
      const double product =
          weight_at(w.format, reinterpret_cast<const std::uint8_t*>(w.codes),
                    reinterpret_cast<const std::uint8_t*>(w.scales), static_cast<int>(w.cols / 128), row, c) *
          __uint_as_float(static_cast<std::uint32_t>(x[c]) << 16) * (k == 0 ? a.post1 : a.post3);
      sum[k] += product;
      error[k] += fabs(product) * 0x1p-17;
    }
    error[k] += fabs(sum[k]) * 0x1p-8;
  }
  const double g = fmin(sum[0], static_cast<double>(a.limit)),
               u = fmin(fmax(sum[1], -static_cast<double>(a.limit)), static_cast<double>(a.limit));
  const double sigmoid = 1 / (1 + exp(-g)), silu = g * sigmoid, slope = sigmoid * (1 + g * (1 - sigmoid));
  const double of_g = fabs(slope) * error[0] + error[0] * error[0] / 4;
  const double weight = a.weights == nullptr ? 1.0 : a.weights[a.pairs[place]];
  const double want = silu * u * weight;
  const double allowed =
      fabs(weight) * (fabs(u) * of_g + (fabs(silu) + of_g) * error[1]) + fabs(want) * 0x1p-7 + 1e-30;
  const double got = __uint_as_float(static_cast<std::uint32_t>(a.hidden[place * a.w1.rows + row]) << 16);
  double ratio = fabs(got - want) / allowed;
  if (!(ratio == ratio)) ratio = 1e30;
  atomicMax(worst, static_cast<unsigned long long>(__double_as_longlong(ratio)));
}
double fp64_up_ratio(const Up& a) {
  Buffer<unsigned long long> worst(std::vector<unsigned long long>{0});
  fp64_up_kernel<<<static_cast<unsigned>((a.w1.rows * a.count + 255) / 256), 256>>>(a, worst.get());
  require_cuda(cudaDeviceSynchronize(), "the fp64 half of an expert");
  const unsigned long long bits = worst.host()[0];
  double ratio;
  std::memcpy(&ratio, &bits, 8);
  return ratio;
}

// ---- checks ----

int failures = 0;

template <class T>
void expect_equal(const Buffer<T>& want, const Buffer<T>& got, const std::string& what) {
  require_cuda(cudaDeviceSynchronize(), what.c_str());
  const std::vector<T> a = want.host(), b = got.host();
  std::int64_t differ = 0, first = -1;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      if (first < 0) first = static_cast<std::int64_t>(i);
      ++differ;
    }
  if (differ == 0) return;
  ++failures;
  std::printf("DIFFERENT %s: %lld of %zu, first at %lld\n", what.c_str(), static_cast<long long>(differ),
              a.size(), static_cast<long long>(first));
}
void expect_fp64(double ratio, const std::string& what) {
  if (ratio <= 1.0) return;
  ++failures;
  std::printf("WRONG %s: %g times the allowed error\n", what.c_str(), ratio);
}

float post_of(const Matrix& m) { return m.format == MatrixFormat::kNVFP4 ? m.global_scale : 1.0f; }

// Two matrices of odd numbers of row tiles, BF16 and fp32 results. Slices of a step are cut in other tiles.
void check_dense(MatrixFormat format, std::int64_t cols, int tokens) {
  const std::int64_t rows[2] = {640, 128};
  const Weights w0(format, rows[0], cols, 1), w1(format, rows[1], cols, 2);
  Buffer<std::uint16_t> x(tokens * cols), operand(operand_rows(tokens) * cols);
  launch_random_bf16(reinterpret_cast<std::byte*>(x.get()), tokens * cols, 1.0f, 3, nullptr);
  Buffer<std::uint16_t> y0(tokens * rows[0]), sliced0(tokens * rows[0]);
  Buffer<float> y1(tokens * rows[1]), sliced1(tokens * rows[1]);
  const std::string what = std::string(name_of(format)) + " " + std::to_string(cols) + " columns " +
                           std::to_string(tokens) + " tokens ";
  for (const bool fp8 : {true, false}) {
    if (fp8 && format == MatrixFormat::kBF16) continue;
    const auto product = [&](int first, int count, std::uint16_t* out0, float* out1) {
      launch_gemm_operand(x.get() + first * cols, count, cols, cols, format, fp8, operand.get(), nullptr);
      const GemmJob jobs[2] = {{w0.m, operand.get(), out0 + first * rows[0], rows[0], true},
                               {w1.m, operand.get(), out1 + first * rows[1], rows[1], false}};
      launch_gemm(jobs, count, nullptr);
    };
    product(0, tokens, y0.get(), y1.get());
    sliced0.clear(0xff);
    sliced1.clear(0xff);
    const int sizes[] = {1, 64, 100, 33, 300};
    for (int first = 0, i = 0; first < tokens; first += sizes[i++ % 5])
      product(first, std::min(sizes[i % 5], tokens - first), sliced0.get(), sliced1.get());
    expect_equal(y0, sliced0, what + "in slices");
    expect_equal(y1, sliced1, what + "in slices, fp32");
  }
  expect_fp64(fp64_ratio(w0.m, post_of(w0.m), x.get(), y0.get(), true, rows[0], tokens), what + "BF16");
  expect_fp64(fp64_ratio(w1.m, post_of(w1.m), x.get(), y1.get(), false, rows[1], tokens), what + "fp32");
}

// Everything that a layer's experts need.
struct Experts {
  int tokens, chosen, experts;
  std::int64_t width, inner, pairs;
  MatrixFormat format, shared_format;
  std::vector<std::unique_ptr<Weights>> matrices;
  ExpertArguments a;
  std::unique_ptr<Buffer<DeviceExpert>> table, list_weights;
  std::unique_ptr<Buffer<std::int32_t>> ids, expert, first, count, list_pairs, list_tokens, place, num_tiles,
      row;
  std::unique_ptr<Buffer<float>> route_weights, weight;
  std::unique_ptr<Buffer<ExpertTile>> tiles;
  std::unique_ptr<Buffer<std::uint16_t>> x, operand, v, hidden, partial, out, shared_x, shared_v;
  ExpertRows rows;

  Experts(MatrixFormat routed, MatrixFormat shared, std::int64_t width_, std::int64_t inner_, int experts_,
          int chosen_, int tokens_, const std::vector<std::int32_t>* given)
      : tokens(tokens_),
        chosen(chosen_),
        experts(experts_),
        width(width_),
        inner(inner_),
        pairs(std::int64_t{tokens_} * chosen_),
        format(routed),
        shared_format(shared) {
    std::vector<DeviceExpert> host(static_cast<std::size_t>(experts) + 1);
    for (int e = 0; e <= experts; ++e) {
      const MatrixFormat f = e < experts ? routed : shared;
      const auto seed = static_cast<std::uint32_t>(10 * e);
      matrices.push_back(std::make_unique<Weights>(f, inner, width, seed + 1));
      matrices.push_back(std::make_unique<Weights>(f, inner, width, seed + 2));
      matrices.push_back(std::make_unique<Weights>(f, width, inner, seed + 3));
      const std::size_t at = matrices.size();
      host[static_cast<std::size_t>(e)] = {matrices[at - 3]->m, matrices[at - 2]->m, matrices[at - 1]->m};
    }
    const auto make = [](auto& buffer, std::int64_t n) {
      buffer = std::make_unique<std::remove_reference_t<decltype(*buffer)>>(n);
      return buffer->get();
    };
    table = std::make_unique<Buffer<DeviceExpert>>(host);
    if (given != nullptr) {
      ids = std::make_unique<Buffer<std::int32_t>>(*given);
    } else {
      make(ids, pairs);
      launch_random_ids(ids->get(), tokens, chosen, experts, 7, nullptr);
    }
    make(route_weights, pairs);
    launch_random_floats(route_weights->get(), pairs, 0.3f, 0.2f, 5, nullptr);
    make(x, tokens * width);
    launch_random_bf16(reinterpret_cast<std::byte*>(x->get()), tokens * width, 2.0f, 9, nullptr);
    a.tokens = tokens;
    a.chosen = chosen;
    a.width = static_cast<std::int32_t>(width);
    a.inner = static_cast<std::int32_t>(inner);
    a.limit = 10.0f;
    a.routed_format = routed;
    a.shared_format = shared;
    a.experts = experts;
    a.table = table->get();
    a.route_weights = route_weights->get();
    a.list.slots = static_cast<std::int32_t>(std::min<std::int64_t>(pairs, experts));
    a.list.expert = make(expert, a.list.slots);
    a.list.first = make(first, a.list.slots);
    a.list.count = make(count, a.list.slots);
    a.list.weights = make(list_weights, a.list.slots);
    a.list.pairs = make(list_pairs, pairs);
    a.list.tokens = make(list_tokens, pairs);
    a.list.place = make(place, pairs);
    launch_work_list(ids->get(), tokens, chosen, experts, a.table, a.list, nullptr);
    rows.tiles = make(tiles, most_expert_tiles(pairs, a.list.slots));
    rows.num_tiles = make(num_tiles, 1);
    rows.row = make(row, pairs);
    rows.weight = make(weight, pairs);
    rows.rows = expert_operand_rows(pairs, a.list.slots);
    make(operand, rows.rows * width);
    make(v, rows.rows * inner);
    make(hidden, (pairs + tokens) * inner);
    make(partial, (pairs + tokens) * width);
    make(out, tokens * width);
    make(shared_x, operand_rows(tokens) * width);
    make(shared_v, operand_rows(tokens) * inner);
    require_cuda(cudaDeviceSynchronize(), "making experts");
  }
  ExpertArguments arguments() const {
    ExpertArguments b = a;
    b.hidden = hidden->get();
    b.partial = partial->get();
    b.out = out->get();
    return b;
  }
  const Matrix& shared(int which) const { return matrices[static_cast<std::size_t>(3 * experts + which)]->m; }

  // The parts of the layer, so that they can be timed one by one. fp8: round activations.
  void tile_rows() { launch_expert_rows(a, rows, nullptr); }
  void up_operand(bool fp8) {
    launch_expert_operand(a, rows, x->get(), false, a.width, fp8, operand->get(), nullptr);
  }
  void up() { launch_gemm_experts_up(arguments(), rows, operand->get(), nullptr); }
  void down_operand(bool fp8) {
    launch_expert_operand(a, rows, hidden->get(), true, a.inner, fp8, v->get(), nullptr);
  }
  void down() { launch_gemm_experts_down(arguments(), rows, v->get(), nullptr); }
  void shared_operand(bool fp8) {
    launch_gemm_operand(x->get(), tokens, width, width, shared_format, fp8, shared_x->get(), nullptr);
  }
  void shared_up() { launch_gemm_shared_up(arguments(), shared_x->get(), nullptr); }
  void shared_down(bool fp8) {
    launch_gemm_operand(hidden->get() + pairs * inner, tokens, inner, inner, shared_format, fp8,
                        shared_v->get(), nullptr);
    const GemmJob job{shared(2), shared_v->get(), partial->get() + pairs * width, width, true};
    launch_gemm({&job, 1}, tokens, nullptr);
  }
  void sum() { launch_gemm_expert_sum(arguments(), nullptr); }
  void run(bool routed_fp8, bool shared_fp8) {
    tile_rows(), up_operand(routed_fp8), up(), down_operand(routed_fp8), down();
    shared_operand(shared_fp8), shared_up(), shared_down(shared_fp8), sum();
  }
};

void check_experts(MatrixFormat routed, MatrixFormat shared, std::int64_t width, std::int64_t inner) {
  // First choices below expert 6, second ones from 6 on, with these numbers of tokens.
  const std::vector<int> counts[2] = {{0, 1, 127, 128, 129, 300}, {300, 129, 0, 200, 55, 1}};
  const int tokens = 685;
  std::vector<std::int32_t> ids(2 * tokens);
  std::mt19937 random(3);
  for (int k = 0; k < 2; ++k) {
    std::vector<std::int32_t> of;
    for (int e = 0; e < 6; ++e)
      of.insert(of.end(), static_cast<std::size_t>(counts[k][static_cast<std::size_t>(e)]), 6 * k + e);
    std::shuffle(of.begin(), of.end(), random);
    for (int t = 0; t < tokens; ++t)
      ids[static_cast<std::size_t>(2 * t + k)] = of[static_cast<std::size_t>(t)];
  }
  Experts e(routed, shared, width, inner, 12, 2, tokens, &ids);
  const std::string what =
      std::string("experts ") + name_of(routed) + " " + name_of(shared) + " " + std::to_string(width) + " ";
  e.run(false, false);
  require_cuda(cudaDeviceSynchronize(), what.c_str());
  const std::vector<std::int32_t> first = e.first->host(), count = e.count->host(), expert = e.expert->host();
  const auto check_expert = [&](int number, std::int64_t at, int places, const std::int32_t* list_tokens,
                                const std::int32_t* list_pairs, const std::string& name) {
    const auto matrix = [&](int k) { return e.matrices[static_cast<std::size_t>(3 * number + k)]->m; };
    expect_fp64(
        fp64_up_ratio({matrix(0), matrix(1), post_of(matrix(0)), post_of(matrix(1)), e.a.limit, e.x->get(),
                       list_tokens, list_pairs, list_pairs == nullptr ? nullptr : e.route_weights->get(),
                       e.hidden->get() + at * inner, places}),
        what + "w1, w3 of " + name);
    expect_fp64(fp64_ratio(matrix(2), post_of(matrix(2)), e.hidden->get() + at * inner,
                           e.partial->get() + at * width, true, width, places),
                what + "w2 of " + name);
  };
  for (int s = 0; s < e.a.list.slots; ++s) {
    const auto slot = static_cast<std::size_t>(s);
    if (count[slot] == 0) continue;
    check_expert(expert[slot], first[slot], count[slot], e.list_tokens->get() + first[slot],
                 e.list_pairs->get() + first[slot], "expert " + std::to_string(expert[slot]));
  }
  check_expert(e.experts, e.pairs, tokens, nullptr, nullptr, "the shared expert");
  // The sum: exact, by the kernel of short steps.
  Buffer<std::uint16_t> want(tokens * width);
  ExpertArguments b = e.arguments();
  b.out = want.get();
  launch_expert_sum(b, nullptr);
  expect_equal(want, *e.out, what + "sum");
}

// ---- times ----

Buffer<std::uint8_t>* flush = nullptr;  // larger than the L2

double time_us(const std::function<void()>& f) {
  cudaEvent_t begin, end;
  require_cuda(cudaEventCreate(&begin), "an event");
  require_cuda(cudaEventCreate(&end), "an event");
  f();
  std::vector<float> times;
  for (int i = 0; i < 7; ++i) {
    require_cuda(cudaMemsetAsync(flush->get(), i, static_cast<std::size_t>(flush->count())), "flushing");
    require_cuda(cudaEventRecord(begin), "an event");
    f();
    require_cuda(cudaEventRecord(end), "an event");
    require_cuda(cudaEventSynchronize(end), "timing");
    float ms;
    require_cuda(cudaEventElapsedTime(&ms, begin, end), "an event");
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 1000.0 * times[times.size() / 2];
}
void print(const std::string& what, double us, double flop) {
  const double rate = flop / us * 1e-6;
  if (flop > 0)
    std::printf("  %-58s %9.1f us %7.1f TFLOP/s %5.1f %%\n", what.c_str(), us, rate,
                100 * rate / kAttainable);
  else
    std::printf("  %-58s %9.1f us\n", what.c_str(), us);
  std::fflush(stdout);
}

struct DenseShape {
  const char* name;
  MatrixFormat format;
  std::vector<std::int64_t> rows;
  std::int64_t cols;
  int groups;  // of columns, one a job; 1: all jobs read the same
  bool out_bf16;
};

void time_dense(const DenseShape& shape, int tokens) {
  std::vector<std::unique_ptr<Weights>> weights;
  std::vector<std::unique_ptr<Buffer<std::uint16_t>>> outs;
  const std::int64_t x_cols = shape.cols * shape.groups;
  Buffer<std::uint16_t> x(tokens * x_cols), operand(operand_rows(tokens) * x_cols);
  launch_random_bf16(reinterpret_cast<std::byte*>(x.get()), tokens * x_cols, 1.0f, 3, nullptr);
  const bool fp8 = shape.format != MatrixFormat::kBF16;
  std::vector<GemmJob> jobs;
  double flop = 0;
  for (std::size_t i = 0; i < shape.rows.size(); ++i) {
    const std::int64_t rows = shape.rows[i],
                       column = shape.groups > 1 ? static_cast<std::int64_t>(i) * shape.cols : 0;
    weights.push_back(
        std::make_unique<Weights>(shape.format, rows, shape.cols, static_cast<std::uint32_t>(i)));
    outs.push_back(std::make_unique<Buffer<std::uint16_t>>(tokens * rows * (shape.out_bf16 ? 1 : 2)));
    jobs.push_back({weights.back()->m, operand.get() + column * operand_rows(tokens), outs.back()->get(),
                    rows, shape.out_bf16});
    flop += 2.0 * static_cast<double>(rows * shape.cols) * tokens;
  }
  std::printf("%s, %d tokens\n", shape.name, tokens);
  print("operand", time_us([&] {
          launch_gemm_operand(x.get(), tokens, x_cols, x_cols, shape.format, fp8, operand.get(), nullptr);
        }),
        0);
  print("product", time_us([&] { launch_gemm(jobs, tokens, nullptr); }), flop);
}

void time_experts(MatrixFormat format, int tokens) {
  Experts e(format, MatrixFormat::kFP8, 4096, 2048, 256, 6, tokens, nullptr);
  const double half = 2.0 * static_cast<double>(e.pairs) * 4096 * 2048, shared = 2.0 * tokens * 4096.0 * 2048;
  e.run(true, true);
  std::printf("experts %s, %d tokens\n", name_of(format), tokens);
  print("rows", time_us([&] { e.tile_rows(); }), 0);
  print("operand", time_us([&] { e.up_operand(true); }), 0);
  print("w1, w3", time_us([&] { e.up(); }), 2 * half);
  print("operand of w2", time_us([&] { e.down_operand(true); }), 0);
  print("w2", time_us([&] { e.down(); }), half);
  print("shared expert w1, w3 and SwiGLU", time_us([&] { e.shared_up(); }), 2 * shared);
  print("shared expert operand and w2", time_us([&] { e.shared_down(true); }), shared);
  print("sum", time_us([&] { e.sum(); }), 0);
  print("all experts of a layer", time_us([&] { e.run(true, true); }), 3 * half + 3 * shared);
}

int run(bool check, bool time) {
  Buffer<std::uint8_t> l2(std::int64_t{256} << 20);
  flush = &l2;
  using F = MatrixFormat;
  if (check) {
    for (const F format : {F::kFP8, F::kFP4, F::kNVFP4, F::kBF16})
      for (const std::int64_t cols : {1024, 2048, 4096})
        for (const int tokens : {129, 200, 1000})
          if (cols != 2048 || tokens == 200) check_dense(format, cols, tokens);
    check_dense(F::kFP8, 128, 7);  // less than one tile of anything
    check_experts(F::kFP4, F::kFP8, 4096, 2048);
    check_experts(F::kFP4, F::kFP8, 1024, 1024);
    check_experts(F::kNVFP4, F::kFP8, 1024, 2048);
    check_experts(F::kNVFP4, F::kBF16, 1024, 384);
    check_experts(F::kFP8, F::kFP8, 1024, 1024);
    check_experts(F::kBF16, F::kBF16, 1024, 1024);
    std::printf(failures == 0 ? "checks passed\n" : "%d checks FAILED\n", failures);
    std::fflush(stdout);
  }
  if (time && failures == 0) {
    const std::vector<DenseShape> shapes = {
        {"wq_b and the indexer's", F::kFP8, {32768, 8192}, 1024, 1, true},
        {"wo_b", F::kFP8, {4096}, 8192, 1, true},
        {"wo_a", F::kFP8, {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024}, 4096, 8, true},
        {"wq_a, wkv", F::kFP8, {1024, 512}, 4096, 1, true},
        {"compressors (ratio 4)", F::kBF16, {1024, 1024, 256, 256}, 4096, 1, false},
        {"fp8 4096x4096", F::kFP8, {4096}, 4096, 1, true},
        {"bf16 4096x4096", F::kBF16, {4096}, 4096, 1, true},
    };
    for (const int tokens : {8192, 2048}) {
      time_experts(F::kFP4, tokens);
      for (const DenseShape& shape : shapes) time_dense(shape, tokens);
    }
    time_experts(F::kNVFP4, 8192);
    time_dense({"head", F::kBF16, {129280}, 4096, 1, false}, 2048);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pivot::cuda

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  return pivot::cuda::run(what != "time", what != "check");
}
