// Laboratory: index scores and exact top-k of short steps (src/ops/cuda/indexer): scores against fp64, top-k
// against a sort, both on the host; and their times. What is measured is what ships: the program links the
// project's own objects (README.md).
//
//   indexer check    ends with 1 at any difference
//   indexer time     one query, 4K to 1M tokens, launches chained in a graph
//   indexer          both
//
// Bound of a score: 2^-18 of sum |w| sum |q k|, for fp32 sums in any order; 2^-6 of sum |w| |q . k| more
// where scores are rounded to BF16 head by head.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "numeric/row_layout.h"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/placement/random_fill.h"
#include "ops/cuda/runtime/launch.h"

#include "lab.h"

namespace pivot::cuda {

namespace {

constexpr std::int64_t kRate = 4340;  // GB/s of a reading kernel on an H200

int failures = 0;
std::int64_t comparisons = 0;
void differ(const std::string& what, std::int64_t where, double got, double want) {
  if (++failures <= 40)
    std::printf("DIFFERENT %s: at %lld got %.9g, want %.9g\n", what.c_str(), static_cast<long long>(where),
                got, want);
}

std::mt19937_64 random_bits(20261201);
double uniform() { return static_cast<double>(random_bits() >> 11) * 0x1p-53; }
int below(int n) { return static_cast<int>(random_bits() % static_cast<std::uint64_t>(n)); }

// ---- top-k ----

struct Family {
  const char* name;
  std::function<void(std::vector<float>&)> fill;
};
std::vector<Family> families() {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto each = [](auto f) {
    return [f](std::vector<float>& x) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = f(i, x.size());
    };
  };
  const auto normal = [](std::size_t, std::size_t) {
    static std::normal_distribution<float> d;
    return d(random_bits);
  };
  const auto some = [](auto inner, float value, double share) {
    return [=](std::size_t i, std::size_t n) { return uniform() < share ? value : inner(i, n); };
  };
  const auto bits = [](std::uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
  };
  const auto spread = [=](std::size_t i, std::size_t n) { return std::exp(6.0f * normal(i, n)); };
  return {
      {"normal", each(normal)},
      {"all equal", each([](auto, auto) { return 0.25f; })},
      {"all NaN", each([=](auto, auto) { return nan; })},
      {"few distinct", each([](auto, auto) { return static_cast<float>(below(7)) - 3.0f; })},
      {"100 values", each([](auto, auto) { return static_cast<float>(below(100)); })},
      {"mostly zero", each(some(normal, 0.0f, 0.9))},
      {"65 equal", each([=](std::size_t i, std::size_t n) {
         return i % std::max<std::size_t>(n / 65, 1) == 0 ? 3.0f : normal(i, n);
       })},
      {"one outlier", each([=](std::size_t i, std::size_t n) { return i == n / 3 ? 1e30f : normal(i, n); })},
      {"one low outlier", each([=](std::size_t i, std::size_t n) { return i == 5 ? -1e35f : normal(i, n); })},
      {"beyond fp32's range",
       each([](auto, auto) { return below(2) == 0 ? 3e38f : -3e38f * static_cast<float>(uniform()); })},
      {"heavy tail", each(spread)},
      {"any bits", each([=](auto, auto) { return bits(static_cast<std::uint32_t>(random_bits())); })},
      {"some NaN and infinities", each(some(some(some(normal, nan, 0.1), inf, 0.05), -inf, 0.3))},
      {"mostly NaN", each(some(normal, nan, 0.999))},
      {"mostly -inf", each(some(normal, -inf, 0.999))},
      {"one NaN in each warp's piece",
       each([=](std::size_t i, std::size_t n) { return i % 32 == 7 ? nan : normal(i, n); })},
      {"denormals",
       each([=](auto, auto) { return bits(static_cast<std::uint32_t>(random_bits()) & 0x800fffffu); })},
      {"denormals and one", each([=](std::size_t i, auto) {
         return i == 9 ? 1.0f : bits(static_cast<std::uint32_t>(below(2000)));
       })},
      {"signed zeros", each([](auto, auto) { return below(2) == 0 ? 0.0f : -0.0f; })},
      {"signed zeros among numbers", each([=](std::size_t i, std::size_t n) {
         return below(3) == 0 ? 0.0f : below(2) == 0 ? -0.0f : -std::fabs(normal(i, n));
       })},
      {"ascending", each([](std::size_t i, auto) { return static_cast<float>(i); })},
      {"descending", each([](std::size_t i, auto) { return -static_cast<float>(i); })},
      {"powers of two",
       each([](std::size_t i, auto) { return std::ldexp(1.0f, static_cast<int>(i % 250) - 125); })},
  };
}

std::uint32_t host_key(float x) {
  if (std::isnan(x)) return 0;
  if (x == 0.0f) x = 0.0f;
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
// Entries from the best to the worst.
std::vector<std::int32_t> ranking(const float* x, int n) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::uint32_t> keys(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) keys[static_cast<std::size_t>(i)] = host_key(x[i]);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return keys[static_cast<std::size_t>(a)] > keys[static_cast<std::size_t>(b)];
  });
  return order;
}

struct Rows {  // of one length each, in one buffer
  std::vector<int> lengths;
  std::int64_t stride;
  std::vector<std::vector<std::int32_t>> best;
};

void expect_rows(const Rows& rows, int from, int count, int k, const Buffer<std::int32_t>& selected,
                 const Buffer<std::int32_t>& counts, const std::string& what) {
  require_cuda(cudaDeviceSynchronize(), what.c_str());
  const std::vector<std::int32_t> got = selected.host(), got_count = counts.host();
  for (int r = 0; r < count; ++r) {
    const int n = rows.lengths[static_cast<std::size_t>(from + r)];
    const auto& best = rows.best[static_cast<std::size_t>(from + r)];
    std::vector<std::int32_t> want(best.begin(), best.begin() + std::min(n, k));
    std::sort(want.begin(), want.end());
    want.resize(static_cast<std::size_t>(k), -1);
    const std::string row = what + ", " + std::to_string(k) + " of " + std::to_string(n);
    ++comparisons;
    if (got_count[static_cast<std::size_t>(r)] != std::min(n, k))
      differ(row + ", count", 0, got_count[static_cast<std::size_t>(r)], std::min(n, k));
    for (int i = 0; i < k; ++i)
      if (got[static_cast<std::size_t>(r * k + i)] != want[static_cast<std::size_t>(i)]) {
        differ(row, i, got[static_cast<std::size_t>(r * k + i)], want[static_cast<std::size_t>(i)]);
        break;
      }
  }
}

void check_topk() {
  Rows rows;
  rows.lengths = {0,    1,    63,   64,    65,    512,    513,    1024,   1025,  2047,
                  4096, 8191, 8193, 32768, 40000, 131072, 262144, 262145, 300000};
  const int count = static_cast<int>(rows.lengths.size());
  rows.stride = 300032;
  Buffer<float> scores(rows.stride * count);
  Buffer<std::int32_t> lengths(rows.lengths);
  std::vector<std::int32_t> positions, order;
  for (const int n : rows.lengths) positions.push_back(4 * n - 1);
  Buffer<std::int32_t> device_positions(positions);
  for (const Family& family : families()) {
    rows.best.clear();
    for (int r = 0; r < count; ++r) {
      std::vector<float> x(static_cast<std::size_t>(rows.lengths[static_cast<std::size_t>(r)]));
      family.fill(x);
      if (!x.empty()) scores.fill(x, r * rows.stride);
      rows.best.push_back(ranking(x.data(), static_cast<int>(x.size())));
    }
    for (const int k : {1, 64, 512, 2048}) {
      Buffer<std::int32_t> selected(std::int64_t{count} * k), counts(count);
      const auto again = [&] {
        selected.clear();
        counts.clear();
      };
      TopkRows a;
      a.scores = scores.get();
      a.stride = rows.stride;
      a.topk = k;
      a.selected = selected.get();
      a.count = counts.get();
      for (const bool clusters : {false, true}) {
        const std::string how = std::string("top-k, ") + family.name + (clusters ? ", cluster" : ", one CTA");
        a.rows = count;
        a.lengths = lengths.get();
        again();
        launch_topk_rows(a, clusters, nullptr);
        expect_rows(rows, 0, count, k, selected, counts, how);
      }
      // Launches sized by the row itself.
      a.rows = 1;
      a.lengths = nullptr;
      for (int r = 0; r < count; ++r) {
        a.scores = scores.get() + r * rows.stride;
        a.length = rows.lengths[static_cast<std::size_t>(r)];
        again();
        launch_topk_rows(a, true, nullptr);
        expect_rows(rows, r, 1, k, selected, counts, std::string("top-k, ") + family.name + ", by itself");
      }
      IndexArguments step;
      step.batch.num_tokens = count;
      step.batch.positions = device_positions.get();
      step.topk = k;
      step.scores = scores.get();
      step.score_stride = rows.stride;
      step.selected = selected.get();
      step.count = counts.get();
      again();
      launch_topk(step, true, nullptr);
      expect_rows(rows, 0, count, k, selected, counts, std::string("top-k, ") + family.name + ", step");
    }
  }
}

// ---- scores ----

RowLayout layout_of(RowFormat format, int dims) {
  if (format == RowFormat::kIndexFp4) return {format, dims, 0, dims / 2, dims / 32};
  if (format == RowFormat::kIndexFp8) return {format, dims, 0, dims, 4};
  return {format, dims, 0, 2 * dims, 0};
}
const char* name_of(RowFormat format) {
  return format == RowFormat::kIndexFp4 ? "fp4" : format == RowFormat::kIndexFp8 ? "fp8" : "bf16";
}

// Queries at the end of sequences of `visible` entries each.
struct Scoring {
  RowLayout layout;
  int dims, heads, page_rows, tokens;
  std::int64_t pages, page_bytes;
  Buffer<std::byte> keys, q;
  Buffer<float> weights;
  Buffer<std::int32_t> table, positions, span_of;
  Buffer<SequenceSpan> spans;
  IndexArguments a;

  // `copies`: pages of so many rows of the page table, of which the spans use one each.
  Scoring(RowFormat format, int dims_of, int heads_of, int rows, const std::vector<int>& visible, int copies,
          bool shuffled)
      : layout(layout_of(format, dims_of)),
        dims(dims_of),
        heads(heads_of),
        page_rows(rows),
        tokens(static_cast<int>(visible.size())),
        pages((*std::max_element(visible.begin(), visible.end()) + rows - 1) / rows),
        page_bytes((layout.page_bytes(rows) + 255) / 256 * 256),
        keys(copies * pages * page_bytes),
        q(std::int64_t{2} * tokens * heads * dims),
        weights(std::int64_t{tokens} * heads),
        table(copies * pages),
        positions(tokens),
        span_of(tokens),
        spans(std::max(tokens, copies)) {
    launch_random_rows(keys.get(), page_bytes, copies * pages, rows, layout, 5, nullptr);
    launch_random_bf16(q.get(), std::int64_t{tokens} * heads * dims, 1.0f, 6, nullptr);
    launch_random_floats(weights.get(), std::int64_t{tokens} * heads, 0.0f, 1.0f, 7, nullptr);
    require_cuda(cudaDeviceSynchronize(), "random keys");
    std::vector<std::int32_t> order(static_cast<std::size_t>(copies * pages)), at, span;
    std::iota(order.begin(), order.end(), 0);
    if (shuffled) std::shuffle(order.begin(), order.end(), random_bits);
    table.fill(order);
    std::vector<SequenceSpan> all;
    for (int i = 0; i < std::max(tokens, copies); ++i) {
      const int last = 4 * visible[static_cast<std::size_t>(i % tokens)] - 1;
      all.push_back({i, 1, last, 0, i % copies});
      if (i < tokens) at.push_back(last), span.push_back(i);
    }
    positions.fill(at);
    span_of.fill(span);
    spans.fill(all);
    a.batch.num_tokens = a.batch.num_spans = tokens;
    a.batch.positions = positions.get();
    a.batch.span_of = span_of.get();
    a.batch.spans = spans.get();
    a.heads = heads;
    a.dim = dims;
    a.index_q = q.get();
    a.index_weights = weights.get();
    a.keys = {keys.get(), page_bytes, page_rows, layout, table.get(), static_cast<std::int32_t>(pages)};
    a.topk = 8;
    a.score_stride = (pages * page_rows + 3) / 4 * 4;
  }
};

// Every score of the first 100 entries of a query, then one of 37.
void expect_scores(Scoring& s, int multiprocessors, const std::string& what) {
  Buffer<float> scores(s.a.score_stride * s.tokens);
  s.a.scores = scores.get();
  launch_index_scores(s.a, multiprocessors, nullptr);
  require_cuda(cudaDeviceSynchronize(), what.c_str());
  const std::vector<float> got = scores.host(), weights = s.weights.host();
  const std::vector<std::byte> keys = s.keys.host(), raw = s.q.host();
  const std::vector<std::int32_t> table = s.table.host(), positions = s.positions.host();
  std::vector<float> q(raw.size() / 2), key(static_cast<std::size_t>(s.dims));
  for (std::size_t i = 0; i < q.size(); ++i) {
    BF16 x;
    std::memcpy(&x, &raw[2 * i], 2);
    q[i] = to_float(x);
  }
  ++comparisons;
  for (int t = 0; t < s.tokens; ++t) {
    const int visible = (positions[static_cast<std::size_t>(t)] + 1) / 4;
    if (visible <= s.a.topk) continue;  // such a row needs no scores
    for (int j = 0; j < visible; j += j < 100 ? 1 : 37) {
      const std::byte* page =
          &keys[static_cast<std::size_t>(table[static_cast<std::size_t>(j / s.page_rows)] * s.page_bytes)];
      unpack_row(s.layout, page + s.layout.data_offset(j % s.page_rows),
                 page + s.layout.scale_offset(j % s.page_rows, s.page_rows), key.data());
      double want = 0, added = 0, dots = 0;
      for (int h = 0; h < s.heads; ++h) {
        const auto head = static_cast<std::size_t>(t * s.heads + h);
        double dot = 0, size = 0;
        for (std::size_t d = 0; d < key.size(); ++d) {
          const double product = static_cast<double>(q[head * key.size() + d]) * key[d];
          dot += product;
          size += std::fabs(product);
        }
        want += weights[head] * std::max(dot, 0.0);
        added += std::fabs(weights[head]) * size;
        dots += std::fabs(weights[head] * dot);
      }
      const double score = got[static_cast<std::size_t>(t * s.a.score_stride + j)];
      if (!(std::fabs(score - want) <= added * 0x1p-18 + (s.a.bf16_scores ? dots * 0x1p-6 : 0.0)))
        return differ(what + ", query " + std::to_string(t), j, score, want);
    }
  }
}

void check_scores(int multiprocessors) {
  // Lengths around the tiles of 16 and 32 keys, pages, and where a warp takes 32 keys at a time.
  const std::vector<int> lengths = {7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 1000, 1024, 8447, 8449, 20001};
  for (const RowFormat format : {RowFormat::kIndexFp4, RowFormat::kIndexFp8, RowFormat::kBf16})
    for (const int dims : {128, 64})
      for (const int heads : {64, 8, 33})
        for (const int page_rows : {64, 48}) {
          Scoring s(format, dims, heads, page_rows, lengths, 1, true);
          for (const bool bf16 : {false, true}) {
            s.a.bf16_scores = bf16;
            expect_scores(s, multiprocessors,
                          std::string("scores, ") + name_of(format) + ", " + std::to_string(heads) +
                              " heads of " + std::to_string(dims) + ", pages of " +
                              std::to_string(page_rows) + (bf16 ? ", bf16 scores" : ""));
          }
        }
  for (const RowFormat format : {RowFormat::kIndexFp4, RowFormat::kIndexFp8, RowFormat::kBf16}) {
    Scoring s(format, 128, 64, 64, {33791, 33793, 131072, 100003}, 1, true);
    for (const int tokens : {4, 1}) {
      s.tokens = s.a.batch.num_tokens = tokens;
      expect_scores(s, multiprocessors, std::string("scores, long rows, ") + name_of(format));
    }
  }
}

// ---- times ----

// Microseconds of one of `launches` calls of `record`, chained in a graph: the median of nine.
template <class Record>
double time_chain(cudaStream_t stream, int launches, const Record& record) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  record(0);
  require_cuda(cudaStreamSynchronize(stream), "the first launch");
  require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
  for (int i = 0; i < launches; ++i) record(i);
  require_cuda(cudaStreamEndCapture(stream, &graph), "capturing");
  require_cuda(cudaGraphInstantiate(&ready, graph, 0), "instantiating");
  cudaEvent_t begin, end;
  require_cuda(cudaEventCreate(&begin), "event");
  require_cuda(cudaEventCreate(&end), "event");
  std::vector<float> all;
  for (int i = 0; i < 10; ++i) {
    require_cuda(cudaEventRecord(begin, stream), "event");
    require_cuda(cudaGraphLaunch(ready, stream), "running");
    require_cuda(cudaEventRecord(end, stream), "event");
    require_cuda(cudaEventSynchronize(end), "running");
    float ms = 0;
    require_cuda(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i > 0) all.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  std::sort(all.begin(), all.end());
  return 1000.0 * all[all.size() / 2] / launches;
}

void time_topk(cudaStream_t stream) {
  std::printf("\ntop-512 of a row in the L2, us\n%10s %-12s %8s %8s\n", "entries", "scores", "cluster",
              "one CTA");
  for (const int n : {1024, 2048, 8192, 16384, 32768, 131072, 262144})
    for (const bool heavy : {false, true}) {
      std::vector<float> x(static_cast<std::size_t>(n));
      std::normal_distribution<float> normal;
      for (float& v : x) v = heavy ? std::exp(2.0f * normal(random_bits)) : normal(random_bits);
      Buffer<float> scores(x);
      Buffer<std::int32_t> selected(512), count(1);
      TopkRows a;
      a.scores = scores.get();
      a.stride = n;
      a.rows = 1;
      a.length = n;
      a.topk = 512;
      a.selected = selected.get();
      a.count = count.get();
      const double now = time_chain(stream, 40, [&](int) { launch_topk_rows(a, true, stream); });
      const double one = time_chain(stream, 40, [&](int) { launch_topk_rows(a, false, stream); });
      std::printf("%10d %-12s %8.2f %8.2f\n", n, heavy ? "log-normal" : "normal", now, one);
    }
}

// Every launch reads other keys, so that they come from memory.
void time_scores(int multiprocessors, cudaStream_t stream) {
  std::printf("\none query of 64 heads, %.0f GB/s a reading kernel\n%8s %6s %12s %8s %8s %8s\n",
              static_cast<double>(kRate), "tokens", "keys", "bytes", "scores", "GB/s", "select");
  for (const RowFormat format : {RowFormat::kIndexFp4, RowFormat::kIndexFp8, RowFormat::kBf16})
    for (const int tokens : {4096, 16384, 131072, 1048576}) {
      const int entries = tokens / 4;
      const std::int64_t bytes = std::int64_t{entries} * layout_of(format, 128).row_bytes();
      const int copies = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{512} << 20) / bytes, 4, 64));
      Scoring s(format, 128, 64, 64, {entries}, copies, false);
      Buffer<float> scores(entries);
      Buffer<std::int32_t> selected(512), count(1);
      s.a.topk = 512;
      s.a.scores = scores.get();
      s.a.selected = selected.get();
      s.a.count = count.get();
      const auto copy = [&](int i) { s.a.batch.spans = s.spans.get() + i; };
      const double now = time_chain(stream, copies, [&](int i) {
        copy(i);
        launch_index_scores(s.a, multiprocessors, stream);
      });
      const double select_now = time_chain(stream, copies, [&](int i) {
        copy(i);
        launch_index_scores(s.a, multiprocessors, stream);
        launch_topk(s.a, true, stream);
      });
      std::printf("%8d %6s %10.2fMB %8.2f %8.0f %8.2f\n", tokens, name_of(format),
                  static_cast<double>(bytes) * 1e-6, now, static_cast<double>(bytes) * 1e-3 / now,
                  select_now);
    }
}

}  // namespace
}  // namespace pivot::cuda

int main(int argc, char** argv) {
  using namespace pivot::cuda;
  const std::string what = argc > 1 ? argv[1] : "";
  int multiprocessors = 0;
  require_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
               "asking the device");
  if (what != "time") {
    check_topk();
    std::printf("top-k: %lld rows compared, %d different\n", static_cast<long long>(comparisons), failures);
    comparisons = 0;
    const int before = failures;
    check_scores(multiprocessors);
    std::printf("scores: %lld launches compared, %d different\n", static_cast<long long>(comparisons),
                failures - before);
  }
  if (what != "check") {
    cudaStream_t stream;
    require_cuda(cudaStreamCreate(&stream), "a stream");
    time_topk(stream);
    time_scores(multiprocessors, stream);
  }
  return failures == 0 ? 0 : 1;
}
