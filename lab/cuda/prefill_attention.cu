// Laboratory: attention of long steps (src/ops/cuda/attention/prefill.cu) against the kernel of short ones
// and against fp64 on the host, then both timed. prefill_attention [checks|times|profile]
//
// Bounds. Host: the same rounding points (P to BF16 under the running maximum of tiles of 64 keys),
// everything else in fp64. An output may differ by 2^-7 of itself (its rounding, and fp32 sums), by 2^-14 of
// what its sum adds in size, and by the P that may be rounded the other way. BF16 numbers near p are at most
// 2^-7 p apart, so one such P moves an output by up to 2^-7 p |v| over the sum: more than anything else here,
// where one key has most of the weight. It may happen to a p that lies closer to the middle of two BF16
// numbers than fp32 computes it. The error of a score is at most 2^-23 of a partial sum in each of the 32
// instructions that add it, 2^-18 of sum |q k|, and the maximum's is as large: which P these are is known,
// key by key. The rotary dims are rounded before they are rotated, too: 2^-8 of both of a pair. The two
// kernels: 2^-6 of the output and 2^-8 of its head's largest. The exit code is 1 where a bound is broken, 3
// where a kernel does not end.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "numeric/row_layout.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/prefill.h"
#include "ops/cuda/placement/random_fill.h"
#include "ops/cuda/placement/schedule.h"

namespace {
using namespace pivot;
using namespace pivot::cuda;

constexpr int kHeads = 64, kDims = 512, kRope = 64, kWindow = 128, kRingRows = 160, kPageRows = 64;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}
// A kernel that waits for itself would hold the card; this gives it 20 s.
void finish(const std::string& what) {
  cudaEvent_t done;
  check(cudaEventCreate(&done), "event");
  check(cudaEventRecord(done), "event");
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t status = cudaEventQuery(done);
    if (status == cudaSuccess) break;
    if (status != cudaErrorNotReady) check(status, what.c_str());
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) {
      std::printf("%s: the kernel does not end\n", what.c_str());
      std::fflush(stdout);
      _exit(3);
    }
  }
  check(cudaEventDestroy(done), "event");
}

template <class T>
class Device {
 public:
  explicit Device(std::size_t count) : count_(count) {
    check(cudaMalloc(&memory_, std::max<std::size_t>(count, 1) * sizeof(T)), "allocating");
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    check(cudaMemcpy(memory_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copying");
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(memory_); }
  T* get() const { return memory_; }
  std::vector<T> host(std::size_t first, std::size_t count) const {
    std::vector<T> out(count);
    check(cudaMemcpy(out.data(), memory_ + first, count * sizeof(T), cudaMemcpyDeviceToHost), "reading");
    return out;
  }

 private:
  T* memory_ = nullptr;
  std::size_t count_;
};

// Per head of a token: outputs further apart than the bound, and outputs that differ at all.
__global__ void compare_kernel(const BF16* a, const BF16* b, std::int64_t rows, unsigned long long* counts) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  float most = 0.0f;
  for (int i = lane; i < kDims; i += 32) most = fmaxf(most, fabsf(to_float(a[row * kDims + i])));
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  unsigned beyond = 0, different = 0, nan = 0;
  for (int i = lane; i < kDims; i += 32) {
    const float x = to_float(a[row * kDims + i]), y = to_float(b[row * kDims + i]);
    const bool x_nan = !(x == x), y_nan = !(y == y);
    nan += x_nan;
    if (x_nan || y_nan) {
      beyond += x_nan != y_nan;
      continue;
    }
    different += x != y;
    if (x == y) continue;
    beyond += !(fabsf(x - y) <= 2 * (fabsf(x) * 0x1p-7f + most * 0x1p-9f));
  }
  atomicAdd(&counts[0], beyond);
  atomicAdd(&counts[1], different);
  atomicAdd(&counts[2], nan);
}

std::mt19937_64 random_bits(20261201);
float normal() { return std::normal_distribution<float>()(random_bits); }
int below(int n) { return static_cast<int>(random_bits() % static_cast<std::uint64_t>(n)); }
float bf(float x) { return round_bf16(x); }

// `count` rows of a layout in pages of `page_rows`, with the values they stand for.
struct Rows {
  RowLayout layout;
  int page_rows, count;
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;

  Rows(const RowLayout& l, int rows_a_page, int rows, bool odd)
      : layout(l), page_rows(rows_a_page), count(rows) {
    const int pages = (rows + page_rows - 1) / page_rows;
    bytes.resize(static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes()));
    values.resize(static_cast<std::size_t>(rows) * kDims);
    std::vector<float> x(kDims);
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < kDims; i += 64) {
        const float amplitude = std::ldexp(1.0f, below(5) - 3);
        for (int k = 0; k < 64; ++k) x[static_cast<std::size_t>(i + k)] = bf(normal() * amplitude);
      }
      pack_row(layout, x.data(), data(r), scales(r));
      if (odd && layout.format == RowFormat::kKvPacked) {  // what no rounding of a row produces
        if (r % 7 == 3) scales(r)[r % 5] = std::byte{140};
        if (r % 11 == 4) scales(r)[6] = std::byte{1};
        if (r % 97 == 96) data(r)[r % 448] = std::byte{0xff};
      }
      unpack_row(layout, data(r), scales(r), &values[static_cast<std::size_t>(r) * kDims]);
    }
  }
  std::int64_t page_bytes() const { return (layout.page_bytes(page_rows) + 575) / 576 * 576; }
  std::byte* page(int r) { return reinterpret_cast<std::byte*>(bytes.data()) + r / page_rows * page_bytes(); }
  std::byte* data(int r) { return page(r) + layout.data_offset(r % page_rows); }
  std::byte* scales(int r) { return page(r) + layout.scale_offset(r % page_rows, page_rows); }
};

struct Case {
  std::string name;
  std::vector<SequenceSpan> spans;  // slots below 4, tables below 4
  int ratio = 0;
  bool packed = true, select = true, odd = false;
  int topk = 512;
};

// Four rings and one pool of compressed rows, which four page tables show in other orders.
struct Cache {
  std::vector<Rows> rings;
  Rows pool;
  std::vector<std::int32_t> tables;
  int stride;
  std::vector<std::uint8_t> ring_bytes;

  Cache(bool packed, bool odd, int entries)
      : pool(packed ? kv_packed_layout(kDims, kRope) : bf16_layout(kDims), kPageRows, entries, odd),
        stride((entries + kPageRows - 1) / kPageRows) {
    for (int i = 0; i < 4; ++i) {
      rings.emplace_back(pool.layout, kRingRows, kRingRows, false);
      ring_bytes.insert(ring_bytes.end(), rings.back().bytes.begin(), rings.back().bytes.end());
    }
    for (int i = 0; i < 4; ++i) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(stride));
      for (int p = 0; p < stride; ++p) order[static_cast<std::size_t>(p)] = p;
      if (i != 0) std::shuffle(order.begin(), order.end() - 1, random_bits);  // the last page is not full
      tables.insert(tables.end(), order.begin(), order.end());
    }
  }
  const float* entry(int table, int j) const {
    const int page = tables[static_cast<std::size_t>(table * stride + j / kPageRows)];
    return &pool.values[static_cast<std::size_t>(page * kPageRows + j % kPageRows) * kDims];
  }
};

struct Step {
  std::vector<SequenceSpan> spans;
  std::vector<std::int32_t> positions, span_of, selected, counts;
  int tokens = 0;
  double keys = 0;  // of all tokens

  explicit Step(const Case& c) : spans(c.spans) {
    for (SequenceSpan& s : spans) {
      s.first_token = tokens;
      for (int i = 0; i < s.num_tokens; ++i) {
        positions.push_back(s.start_position + i);
        span_of.push_back(static_cast<std::int32_t>(&s - spans.data()));
      }
      tokens += s.num_tokens;
    }
    if (c.ratio == 4 && c.select) selected.assign(static_cast<std::size_t>(tokens) * c.topk, -1);
    for (int t = 0; t < tokens; ++t) {
      const int position = positions[static_cast<std::size_t>(t)];
      const int visible = c.ratio == 0 ? 0 : (position + 1) / c.ratio;
      int count = visible;
      if (!selected.empty()) {
        count = std::min(visible, c.topk);
        if (c.odd && t % 3 == 1 && count > 0) count = below(count + 1);  // fewer than there are
        for (int i = 0; i < count; ++i) {  // ascending, different: one of each share of the visible ones
          const auto low = static_cast<std::int64_t>(i) * visible / count,
                     high = static_cast<std::int64_t>(i + 1) * visible / count;
          selected[static_cast<std::size_t>(t) * c.topk + i] =
              static_cast<std::int32_t>(low + below(static_cast<int>(high - low)));
        }
        counts.push_back(count);
      }
      keys += std::min(position + 1, kWindow) + count;
    }
  }
};

struct Failures {
  int count = 0;
};
Failures failures;

struct Data {
  const Cache& host;
  Device<std::uint8_t> pool, rings;
  Device<std::int32_t> tables;
  Device<float> sink, frequencies;
  std::vector<float> host_sink, host_frequencies;

  static std::vector<float> sinks() {
    std::vector<float> v(kHeads);
    for (float& x : v) x = normal();
    return v;
  }
  static std::vector<float> rotations() {
    std::vector<float> v(kRope / 2);
    for (int i = 0; i < kRope / 2; ++i)
      v[static_cast<std::size_t>(i)] = static_cast<float>(std::pow(10000.0, -2.0 * i / kRope));
    return v;
  }
  explicit Data(const Cache& c) : Data(c, sinks(), rotations()) {}
  Data(const Cache& c, const std::vector<float>& s, const std::vector<float>& f)
      : host(c),
        pool(c.pool.bytes),
        rings(c.ring_bytes),
        tables(c.tables),
        sink(s),
        frequencies(f),
        host_sink(s),
        host_frequencies(f) {}
};

struct Run {
  const Case& c;
  const Data& data;
  Step step;
  Device<std::int32_t> positions, span_of, selected, counts;
  Device<SequenceSpan> spans;
  Device<std::uint16_t> q, kv, before, after;
  std::vector<std::uint16_t> host_kv;
  int multiprocessors;
  AttentionArguments a;

  static std::vector<std::uint16_t> rows(int tokens) {
    std::vector<std::uint16_t> v(static_cast<std::size_t>(tokens) * kDims);
    for (std::uint16_t& x : v) x = to_bf16(normal()).bits;
    return v;
  }
  Run(const Case& which, const Data& d, int sms)
      : c(which),
        data(d),
        step(which),
        positions(step.positions),
        span_of(step.span_of),
        selected(step.selected),
        counts(step.counts),
        spans(step.spans),
        q(static_cast<std::size_t>(step.tokens) * kHeads * kDims),
        kv(static_cast<std::size_t>(step.tokens) * kDims),
        before(static_cast<std::size_t>(step.tokens) * kHeads * kDims),
        after(static_cast<std::size_t>(step.tokens) * kHeads * kDims),
        multiprocessors(sms) {
    host_kv = rows(std::min(step.tokens, 1024));
    for (std::size_t at = 0; at < static_cast<std::size_t>(step.tokens) * kDims; at += host_kv.size())
      check(cudaMemcpy(kv.get() + at, host_kv.data(),
                       std::min(host_kv.size(), static_cast<std::size_t>(step.tokens) * kDims - at) * 2,
                       cudaMemcpyHostToDevice),
            "rows");
    launch_random_bf16(reinterpret_cast<std::byte*>(q.get()), std::int64_t{step.tokens} * kHeads * kDims,
                       4.0f, static_cast<std::uint32_t>(step.tokens + c.ratio), nullptr);
    check(cudaMemset(after.get(), 0xff, static_cast<std::size_t>(step.tokens) * kHeads * kDims * 2),
          "clearing");
    a.batch.num_tokens = step.tokens;
    a.batch.positions = positions.get();
    a.batch.span_of = span_of.get();
    a.batch.num_spans = static_cast<std::int32_t>(step.spans.size());
    a.batch.spans = spans.get();
    a.batch.host_spans = step.spans.data();
    a.heads = kHeads;
    a.head_dim = kDims;
    a.rope = kRope;
    a.window = kWindow;
    a.ratio = c.ratio;
    a.scale = static_cast<float>(1.0 / std::sqrt(512.0));
    a.sink = data.sink.get();
    a.frequencies = data.frequencies.get();
    a.q = q.get();
    a.kv = kv.get();
    const Cache& h = data.host;
    a.ring.base = reinterpret_cast<std::byte*>(data.rings.get());
    a.ring.slot_bytes = static_cast<std::int64_t>(h.rings[0].bytes.size());
    a.ring.rows = kRingRows;
    a.ring.layout = h.pool.layout;
    if (c.ratio != 0) {
      a.compressed.base = reinterpret_cast<std::byte*>(data.pool.get());
      a.compressed.page_bytes = h.pool.page_bytes();
      a.compressed.page_rows = kPageRows;
      a.compressed.layout = h.pool.layout;
      a.compressed.page_table = data.tables.get();
      a.compressed.table_stride = h.stride;
    }
    if (!step.selected.empty()) {
      a.selected = selected.get();
      a.selected_count = counts.get();
      a.topk = c.topk;
    }
    a.head_groups = attention_head_groups(step.tokens, kHeads, kDims, multiprocessors, 227 * 1024);
    a.splits = 1;
  }
  void old_kernel() {
    a.o = before.get();
    launch_attention(a, nullptr, nullptr);
  }
  void new_kernel() {
    a.o = after.get();
    launch_prefill_attention(a, multiprocessors, nullptr);
  }

  const float* key(const SequenceSpan& span, int t, int raw, int first_raw, int i,
                   std::vector<float>& own) const {
    if (i >= raw) {
      const int j = i - raw;
      return data.host.entry(
          span.table, step.selected.empty() ? j : step.selected[static_cast<std::size_t>(t) * c.topk + j]);
    }
    const int p = first_raw + i;
    if (p < span.start_position)
      return &data.host.rings[static_cast<std::size_t>(span.slot)]
                  .values[static_cast<std::size_t>(p % kRingRows) * kDims];
    const std::size_t at = static_cast<std::size_t>(span.first_token + p - span.start_position) * kDims;
    for (int d = 0; d < kDims; ++d)
      own[static_cast<std::size_t>(d)] =
          to_float(BF16{host_kv[(at + static_cast<std::size_t>(d)) % host_kv.size()]});
    return own.data();
  }

  // Largest error of the new kernel's output over its bound (head of this file).
  double against_host(int t, int head) const {
    const SequenceSpan& span =
        step.spans[static_cast<std::size_t>(step.span_of[static_cast<std::size_t>(t)])];
    const int position = step.positions[static_cast<std::size_t>(t)];
    const int first_raw = std::max(0, position - kWindow + 1), raw = position - first_raw + 1;
    const int keys = raw + (c.ratio == 0            ? 0
                            : step.selected.empty() ? (position + 1) / c.ratio
                                                    : step.counts[static_cast<std::size_t>(t)]);
    const std::size_t row = (static_cast<std::size_t>(t) * kHeads + static_cast<std::size_t>(head)) * kDims;
    const std::vector<std::uint16_t> qv = q.host(row, kDims), out = after.host(row, kDims);
    std::vector<float> own(kDims);
    // Of each dim: the output, what it adds in size, and what the P of uncertain rounding may move it by.
    std::vector<double> o(kDims, 0.0), size(kDims, 0.0), flips(kDims, 0.0);
    double maximum = -INFINITY, sum = 0;
    for (int first = 0; first < keys; first += kAttentionKeys) {
      const int count = std::min(kAttentionKeys, keys - first);
      std::vector<double> l(static_cast<std::size_t>(count)), error(static_cast<std::size_t>(count));
      double next = maximum;
      for (int i = 0; i < count; ++i) {
        const float* k = key(span, t, raw, first_raw, first + i, own);
        double dot = 0, added = 0;
        for (int d = 0; d < kDims; ++d) {
          const double product = static_cast<double>(to_float(BF16{qv[static_cast<std::size_t>(d)]})) * k[d];
          dot += product;
          added += std::fabs(product);
        }
        l[static_cast<std::size_t>(i)] = dot * a.scale;
        error[static_cast<std::size_t>(i)] = added * a.scale * 0x1p-18;
        next = std::max(next, l[static_cast<std::size_t>(i)]);
      }
      const double rescale = std::exp(maximum - next);
      maximum = next;
      sum *= rescale;
      for (std::vector<double>* all : {&o, &size, &flips})
        for (double& v : *all) v *= rescale;
      const double of_maximum = *std::max_element(error.begin(), error.end());
      for (int i = 0; i < count; ++i) {
        const double p = std::exp(l[static_cast<std::size_t>(i)] - maximum);
        sum += p;
        const double rounded = bf(static_cast<float>(p));
        const double spacing = p > 0 ? std::ldexp(1.0, std::ilogb(p) - 7) : 0.0;
        const double to_middle = spacing / 2 - std::fabs(p - rounded);
        const double flip = to_middle <= p * (error[static_cast<std::size_t>(i)] + of_maximum) ? spacing : 0;
        const float* k = key(span, t, raw, first_raw, first + i, own);
        for (std::size_t d = 0; d < kDims; ++d) {
          o[d] += rounded * k[d];
          size[d] += rounded * std::fabs(k[d]);
          flips[d] += flip * std::fabs(k[d]);
        }
      }
    }
    sum += std::exp(static_cast<double>(data.host_sink[static_cast<std::size_t>(head)]) - maximum);
    std::vector<double> allowed(kDims);
    for (std::size_t d = 0; d < kDims; ++d) {
      o[d] /= sum;
      allowed[d] = (size[d] * 0x1p-14 + flips[d]) / sum;
    }
    for (std::size_t d = kDims - kRope; d < kDims; d += 2) {
      const float angle = static_cast<float>(position) * data.host_frequencies[(d - kDims + kRope) / 2];
      const double x = o[d], y = o[d + 1];
      const double cosine = std::cos(static_cast<double>(angle)), sine = std::sin(static_cast<double>(angle));
      o[d] = x * cosine + y * sine;
      o[d + 1] = y * cosine - x * sine;
      allowed[d] = allowed[d + 1] = allowed[d] + allowed[d + 1] + (std::fabs(x) + std::fabs(y)) * 0x1p-8;
    }
    double worst = 0;
    for (std::size_t d = 0; d < kDims; ++d) {
      const double want = o[d], got = to_float(BF16{out[d]});
      if (std::isnan(want) && std::isnan(got)) continue;
      const double error = std::fabs(want - got) / (std::fabs(want) * 0x1p-7 + allowed[d]);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    return worst;
  }

  void compare(const char* what) {
    Device<unsigned long long> counts_device(std::vector<unsigned long long>(3, 0));
    const std::int64_t all = std::int64_t{step.tokens} * kHeads;
    compare_kernel<<<static_cast<unsigned>((all + 7) / 8), 256>>>(reinterpret_cast<const BF16*>(before.get()),
                                                                  reinterpret_cast<const BF16*>(after.get()),
                                                                  all, counts_device.get());
    finish(c.name + ": comparing");
    const auto n = counts_device.host(0, 3);
    const bool bad = n[0] != 0;
    failures.count += bad;
    std::printf("%-64s %s%llu beyond the bound, %.3f %% differ, %llu NaN", what, bad ? "WRONG: " : "", n[0],
                100.0 * static_cast<double>(n[1]) / static_cast<double>(all * kDims), n[2]);
  }

  void run_checks() {
    old_kernel();
    finish(c.name + ": the kernel of short steps");
    new_kernel();
    finish(c.name + ": the kernel of long steps");
    compare(c.name.c_str());
    if (!c.odd) {
      double worst = 0;
      for (int i = 0; i < 4; ++i) {
        const int t = i == 0 ? 0 : i == 1 ? step.tokens - 1 : below(step.tokens);
        for (const int head : {below(32), 32 + below(32)}) worst = std::max(worst, against_host(t, head));
      }
      const bool bad = !(worst <= 1.0);
      failures.count += bad;
      std::printf("; %shost %.3f of the bound", bad ? "WRONG: " : "", worst);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  template <class Launch>
  double microseconds(int repeats, const Launch& launch) {
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    launch();
    finish(c.name);
    std::vector<float> all;
    for (int i = 0; i < 5; ++i) {
      check(cudaEventRecord(begin), "event");
      for (int k = 0; k < repeats; ++k) launch();
      check(cudaEventRecord(end), "event");
      finish(c.name);
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "event");
      all.push_back(ms / static_cast<float>(repeats));
    }
    std::sort(all.begin(), all.end());
    return 1000.0 * all[all.size() / 2];
  }
  void run_times() {
    const double flop = 4.0 * kHeads * kDims * step.keys;
    const auto line = [&](const char* kernel, double us) {
      std::printf("%-40s %-12s %8.1f us %6.1f TFLOP/s\n", c.name.c_str(), kernel, us, flop / us * 1e-6);
      std::fflush(stdout);
    };
    line("short steps", microseconds(2, [&] { old_kernel(); }));
    line("long steps", microseconds(4, [&] { new_kernel(); }));
    compare(c.name.c_str());
    std::printf("\n");
  }
};

void run_all_checks(int multiprocessors) {
  for (const bool packed : {true, false}) {
    const Cache cache(packed, false, 2048);
    const Data data(cache);
    const std::string kind = packed ? "packed" : "bf16";
    for (const int ratio : {0, 4, 128})
      for (const int tokens : {129, 200, 1000})
        for (const int start : {0, 1, 127, 128, 5000}) {
          Case c;
          c.spans = {{0, tokens, start, 1, 2}};
          c.ratio = ratio;
          c.packed = packed;
          c.name = kind + ", ratio " + std::to_string(ratio) + ", " + std::to_string(tokens) + " tokens at " +
                   std::to_string(start);
          Run(c, data, multiprocessors).run_checks();
        }
    for (const int ratio : {0, 4, 128}) {
      Case c;
      c.spans = {
          {0, 50, 3, 0, 1}, {0, 7, 0, 3, 3}, {0, 150, 2000, 1, 0}, {0, 1, 4095, 2, 2}, {0, 130, 127, 2, 1}};
      c.ratio = ratio;
      c.packed = packed;
      c.name = kind + ", ratio " + std::to_string(ratio) + ", five sequences";
      Run(c, data, multiprocessors).run_checks();
      if (ratio != 4) continue;
      c.select = false;
      c.name = kind + ", ratio 4, five sequences, no selection";
      Run(c, data, multiprocessors).run_checks();
      c.select = true;
      c.topk = 100;
      c.name = kind + ", ratio 4, five sequences, top 100";
      Run(c, data, multiprocessors).run_checks();
    }
    const Cache odd_cache(packed, true, 2048);
    const Data odd_data(odd_cache);
    Case c;
    c.spans = {{0, 300, 100, 0, 0}, {0, 200, 3000, 1, 1}};
    c.ratio = 4;
    c.packed = packed;
    c.odd = true;
    c.name = kind + ", ratio 4, ragged counts, NaN codes and large scales";
    Run(c, odd_data, multiprocessors).run_checks();
  }
}

void run_all_times(int multiprocessors) {
  const Cache cache(true, false, 16384);
  const Data data(cache);
  for (const int tokens : {2048, 8192})
    for (const int start : {0, 57344})
      for (const int ratio : {4, 128, 0}) {
        Case c;
        c.spans = {{0, tokens, start, 1, 1}};
        c.ratio = ratio;
        c.name = "ratio " + std::to_string(ratio) + ", " + std::to_string(tokens) + " tokens at " +
                 std::to_string(start);
        Run(c, data, multiprocessors).run_times();
      }
}

// The kernel once a kind of layer, for a profiler.
void run_profile(int multiprocessors) {
  const Cache cache(true, false, 16384);
  const Data data(cache);
  for (const int ratio : {4, 128}) {
    Case c;
    c.spans = {{0, 2048, 57344, 1, 1}};
    c.ratio = ratio;
    c.name = "profile";
    Run run(c, data, multiprocessors);
    run.new_kernel();
    finish(c.name);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device");
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  if (!prefill_attention_takes(kHeads, kDims, kRope,
                               static_cast<std::int64_t>(properties.sharedMemPerBlockOptin))) {
    std::printf("this card does not take the kernel\n");
    return 2;
  }
  if (part == "profile") return run_profile(properties.multiProcessorCount), 0;
  if (part != "times") run_all_checks(properties.multiProcessorCount);
  if (part != "checks") run_all_times(properties.multiProcessorCount);
  std::printf("%d failures\n", failures.count);
  return failures.count == 0 ? 0 : 1;
}
