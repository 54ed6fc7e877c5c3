// Laboratory: index scores of long steps (src/ops/cuda/indexer/prefill_scores.cu) against the kernel of short
// ones and against fp64 on the host, then both timed.
//
// Built as README.md says; prefill_scores [checks|times].
//
// Bounds. Both kernels have to write the same bits to the same places where keys and queries are FP4, whose
// dot products are exact; elsewhere they may differ by 2^-16 of the row's largest score (BF16 scores: 2^-7),
// and the program says how many do. Host: 2^-18 of sum |w| |dot| (BF16 scores: 2^-6). The exit code is 1
// where a bound is broken.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "numeric/row_layout.h"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/placement/schedule.h"

namespace {

using namespace pivot;
using namespace pivot::cuda;

constexpr int kHeads = 64, kDims = 128, kPageRows = 64;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}
template <class T>
class Device {
 public:
  explicit Device(std::size_t count) {
    check(cudaMalloc(&memory_, std::max<std::size_t>(count, 1) * sizeof(T)), "allocating");
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) { fill(host, host.size()); }
  // `host` over and over until there are `count`.
  Device(const std::vector<T>& host, std::size_t count) : Device(count) { fill(host, count); }
  Device(const Device&) = delete;
  ~Device() { cudaFree(memory_); }
  T* get() const { return memory_; }

 private:
  void fill(const std::vector<T>& host, std::size_t count) {
    for (std::size_t at = 0; at < count; at += host.size())
      check(cudaMemcpy(memory_ + at, host.data(), std::min(host.size(), count - at) * sizeof(T),
                       cudaMemcpyHostToDevice),
            "copying");
  }
  T* memory_ = nullptr;
};

// counts: bits that differ; values further apart than `bound` times the row's largest.
__global__ void compare_kernel(const std::uint32_t* a, const std::uint32_t* b, std::int64_t stride,
                               float bound, unsigned long long* counts) {
  const std::int64_t row = blockIdx.x * stride;
  __shared__ unsigned most_bits;
  if (threadIdx.x == 0) most_bits = 0;
  __syncthreads();
  float most = 0.0f;
  for (std::int64_t i = threadIdx.x; i < stride; i += blockDim.x)
    if (a[row + i] != 0xffffffffu) most = fmaxf(most, fabsf(__uint_as_float(a[row + i])));
  atomicMax(&most_bits, __float_as_uint(most));
  __syncthreads();
  most = __uint_as_float(most_bits);
  unsigned long long different = 0, beyond = 0;
  for (std::int64_t i = threadIdx.x; i < stride; i += blockDim.x) {
    const std::uint32_t x = a[row + i], y = b[row + i];
    if (x == y) continue;
    ++different;
    beyond += !(fabsf(__uint_as_float(x) - __uint_as_float(y)) <= most * bound);
  }
  atomicAdd(&counts[0], different);
  atomicAdd(&counts[1], beyond);
}

std::mt19937_64 random_bits(20261202);
float normal() { return std::normal_distribution<float>()(random_bits); }
int below(int n) { return static_cast<int>(random_bits() % static_cast<std::uint64_t>(n)); }

enum class Keys { kFp4, kFp8, kBf16 };
const char* name_of(Keys k) { return k == Keys::kFp4 ? "fp4" : k == Keys::kFp8 ? "fp8" : "bf16"; }

struct Cache {
  RowLayout layout;
  int entries, stride;
  std::int64_t page_bytes;
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;
  std::vector<std::int32_t> tables;

  Cache(Keys keys, int count)
      : layout(keys == Keys::kFp4   ? index_fp4_layout(kDims)
               : keys == Keys::kFp8 ? index_fp8_layout(kDims)
                                    : bf16_layout(kDims)),
        entries(count),
        stride(count / kPageRows),
        page_bytes(layout.page_bytes(kPageRows)) {
    bytes.resize(static_cast<std::size_t>(stride * page_bytes));
    values.resize(static_cast<std::size_t>(count) * kDims);
    std::vector<float> x(kDims);
    for (int r = 0; r < count; ++r) {
      const float amplitude = std::ldexp(1.0f, below(4) - 2);
      for (float& v : x) v = round_bf16(normal() * amplitude);
      auto* page = reinterpret_cast<std::byte*>(bytes.data()) + r / kPageRows * page_bytes;
      std::byte *data = page + layout.data_offset(r % kPageRows),
                *scales = page + layout.scale_offset(r % kPageRows, kPageRows);
      pack_row(layout, x.data(), data, scales);
      unpack_row(layout, data, scales, &values[static_cast<std::size_t>(r) * kDims]);
    }
    for (int i = 0; i < 4; ++i) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(stride));
      for (int p = 0; p < stride; ++p) order[static_cast<std::size_t>(p)] = p;
      if (i != 0) std::shuffle(order.begin(), order.end(), random_bits);
      tables.insert(tables.end(), order.begin(), order.end());
    }
  }
  const float* entry(int table, int j) const {
    const int page = tables[static_cast<std::size_t>(table * stride + j / kPageRows)];
    return &values[static_cast<std::size_t>(page * kPageRows + j % kPageRows) * kDims];
  }
};

struct Case {
  std::string name;
  std::vector<SequenceSpan> spans;
  Keys keys = Keys::kFp4;
  bool bf16_scores = false;
  int topk = 512;
};

int failures = 0;

struct Run {
  static constexpr int kDistinct = 192;  // tokens whose queries differ; later ones repeat them

  const Case& c;
  const Cache& cache;
  std::vector<SequenceSpan> spans;
  std::vector<std::int32_t> positions, span_of;
  int tokens = 0, multiprocessors;
  double pairs = 0;
  std::vector<std::uint16_t> host_q;
  std::vector<float> host_weights;
  IndexArguments a;

  Run(const Case& which, const Cache& keys, int sms)
      : c(which), cache(keys), spans(which.spans), multiprocessors(sms) {
    for (SequenceSpan& s : spans) {
      s.first_token = tokens;
      for (int i = 0; i < s.num_tokens; ++i) {
        positions.push_back(s.start_position + i);
        span_of.push_back(static_cast<std::int32_t>(&s - spans.data()));
        const int visible = (s.start_position + i + 1) / 4;
        if (visible > c.topk) pairs += visible;
      }
      tokens += s.num_tokens;
    }
    const int distinct = std::min(tokens, kDistinct);
    host_q.resize(static_cast<std::size_t>(distinct) * kHeads * kDims);
    host_weights.resize(static_cast<std::size_t>(distinct) * kHeads);
    const RowLayout fp4 = index_fp4_layout(kDims);
    std::vector<std::byte> data(static_cast<std::size_t>(fp4.row_bytes()));
    std::vector<float> x(kDims);
    for (std::size_t row = 0; row < host_weights.size(); ++row) {
      for (float& v : x) v = round_bf16(normal());
      if (c.keys == Keys::kFp4) {  // as the query kernel rounds them
        pack_row(fp4, x.data(), data.data(), data.data() + fp4.data_bytes);
        unpack_row(fp4, data.data(), data.data() + fp4.data_bytes, x.data());
      }
      for (int i = 0; i < kDims; ++i)
        host_q[row * kDims + static_cast<std::size_t>(i)] = to_bf16(x[static_cast<std::size_t>(i)]).bits;
      host_weights[row] = round_bf16(normal()) * 0.01104854f;
    }
  }

  void against_host(const float* scores, std::int64_t stride, double& worst) const {
    for (int n = 0; n < 12; ++n) {
      const int t = n == 0 ? tokens - 1 : below(tokens);
      const int visible = (positions[static_cast<std::size_t>(t)] + 1) / 4;
      if (visible <= c.topk) continue;
      const int j = n == 1 ? visible - 1 : below(visible);
      float got = 0;
      check(cudaMemcpy(&got, scores + t * stride + j, 4, cudaMemcpyDeviceToHost), "reading");
      const float* key =
          cache.entry(spans[static_cast<std::size_t>(span_of[static_cast<std::size_t>(t)])].table, j);
      double want = 0, size = 0;
      for (int h = 0; h < kHeads; ++h) {
        const auto row = static_cast<std::size_t>(t % kDistinct) * kHeads + static_cast<std::size_t>(h);
        double dot = 0;
        for (int d = 0; d < kDims; ++d)
          dot +=
              static_cast<double>(to_float(BF16{host_q[row * kDims + static_cast<std::size_t>(d)]})) * key[d];
        want += host_weights[row] * std::max(dot, 0.0);
        size += std::fabs(host_weights[row] * dot);
      }
      const double error = std::fabs(got - want) / (size * (c.bf16_scores ? 0x1p-6 : 0x1p-18));
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }

  template <class Launch>
  static double microseconds(int repeats, const Launch& launch) {
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    std::vector<float> all;
    for (int i = 0; i < 3; ++i) {
      check(cudaEventRecord(begin), "event");
      for (int k = 0; k < repeats; ++k) launch();
      check(cudaEventRecord(end), "event");
      check(cudaEventSynchronize(end), "running");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "event");
      all.push_back(ms / static_cast<float>(repeats));
    }
    std::sort(all.begin(), all.end());
    return 1000.0 * all[all.size() / 2];
  }

  void run(bool times) {
    Device<std::uint8_t> pool(cache.bytes);
    Device<std::int32_t> tables(cache.tables), device_positions(positions), device_span_of(span_of);
    Device<SequenceSpan> device_spans(spans);
    Device<std::uint16_t> q(host_q, static_cast<std::size_t>(tokens) * kHeads * kDims);
    Device<float> weights(host_weights, static_cast<std::size_t>(tokens) * kHeads);
    const std::int64_t stride = std::int64_t{cache.stride} * kPageRows;
    const auto all = static_cast<std::size_t>(tokens * stride);
    Device<float> before(all), after(all);
    check(cudaMemset(before.get(), 0xff, all * 4), "clearing");
    check(cudaMemset(after.get(), 0xff, all * 4), "clearing");
    a.batch.num_tokens = tokens;
    a.batch.positions = device_positions.get();
    a.batch.span_of = device_span_of.get();
    a.batch.num_spans = static_cast<std::int32_t>(spans.size());
    a.batch.spans = device_spans.get();
    a.heads = kHeads;
    a.dim = kDims;
    a.index_q = q.get();
    a.index_weights = weights.get();
    a.keys.base = reinterpret_cast<std::byte*>(pool.get());
    a.keys.page_bytes = cache.page_bytes;
    a.keys.page_rows = kPageRows;
    a.keys.layout = cache.layout;
    a.keys.page_table = tables.get();
    a.keys.table_stride = cache.stride;
    a.bf16_scores = c.bf16_scores;
    a.topk = c.topk;
    a.score_stride = stride;
    const auto old_kernel = [&] {
      a.scores = before.get();
      launch_index_scores(a, multiprocessors, nullptr);
    };
    const auto new_kernel = [&] {
      a.scores = after.get();
      launch_prefill_index_scores(a, multiprocessors, nullptr);
    };
    old_kernel();
    check(cudaDeviceSynchronize(), "the present kernel");
    new_kernel();
    check(cudaDeviceSynchronize(), "the new kernel");
    Device<unsigned long long> counts(std::vector<unsigned long long>(2, 0));
    compare_kernel<<<static_cast<unsigned>(tokens), 256>>>(
        reinterpret_cast<const std::uint32_t*>(before.get()),
        reinterpret_cast<const std::uint32_t*>(after.get()), stride, c.bf16_scores ? 0x1p-7f : 0x1p-16f,
        counts.get());
    unsigned long long n[2];
    check(cudaMemcpy(n, counts.get(), sizeof(n), cudaMemcpyDeviceToHost), "comparing");
    double worst = 0;
    against_host(after.get(), stride, worst);
    const bool bad = (c.keys == Keys::kFp4 ? n[0] : n[1]) != 0 || !(worst <= 1.0);
    failures += bad;
    std::printf("%-52s %s%llu bits differ, %llu beyond the bound; host %.3f of the bound\n", c.name.c_str(),
                bad ? "WRONG: " : "", n[0], n[1], worst);
    if (times && pairs > 0) {
      const double flop = 2.0 * kHeads * kDims * pairs;
      const double old_us = microseconds(1, old_kernel), new_us = microseconds(3, new_kernel);
      std::printf("%-52s old %9.1f us %6.1f TFLOP/s   new %9.1f us %6.1f TFLOP/s   %.2f x\n", "", old_us,
                  flop / old_us * 1e-6, new_us, flop / new_us * 1e-6, old_us / new_us);
    }
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device");
  const int sms = properties.multiProcessorCount;
  std::printf("%s, %d multiprocessors\n", properties.name, sms);
  if (!prefill_scores_take(kHeads, kDims, static_cast<std::int64_t>(properties.sharedMemPerBlockOptin))) {
    std::printf("this card does not take the kernel\n");
    return 2;
  }
  if (part != "times")
    for (const Keys keys : {Keys::kFp4, Keys::kFp8, Keys::kBf16}) {
      const Cache cache(keys, 2048);
      for (const bool bf16 : {false, true}) {
        Case c;
        c.keys = keys;
        c.bf16_scores = bf16;
        const std::string kind = std::string(name_of(keys)) + (bf16 ? ", bf16 scores" : "");
        for (const int tokens : {129, 1000})
          for (const int start : {0, 1900, 5001}) {
            c.spans = {{0, tokens, start, 0, 2}};
            c.name = kind + ", " + std::to_string(tokens) + " tokens at " + std::to_string(start);
            Run(c, cache, sms).run(false);
          }
        c.spans = {{0, 50, 2030, 0, 1},
                   {0, 7, 0, 3, 3},
                   {0, 150, 4000, 1, 0},
                   {0, 1, 8000, 2, 2},
                   {0, 130, 1000, 2, 1}};
        c.name = kind + ", five sequences";
        Run(c, cache, sms).run(false);
        c.topk = 17;
        c.name = kind + ", five sequences, top 17";
        Run(c, cache, sms).run(false);
      }
    }
  if (part != "checks")
    for (const Keys keys : {Keys::kFp4, Keys::kFp8}) {
      const Cache cache(keys, 16384);
      for (const int tokens : {2048, 8192})
        for (const int start : {0, 57344}) {
          if (tokens + start > 65536 || (keys != Keys::kFp4 && start == 0)) continue;
          Case c;
          c.keys = keys;
          c.spans = {{0, tokens, start, 0, 1}};
          c.name = std::string(name_of(keys)) + ", " + std::to_string(tokens) + " tokens at " +
                   std::to_string(start);
          Run(c, cache, sms).run(true);
        }
    }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
