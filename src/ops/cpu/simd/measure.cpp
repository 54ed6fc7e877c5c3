#include "ops/cpu/simd/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <utility>

#include "ops/cpu/simd/linear.h"
#include "ops/cpu/simd/topk.h"

namespace pivot::simd {
namespace {

// Bytes that are neither zero nor NaN in any format, the same in every run.
std::vector<std::byte> pattern(std::int64_t bytes) {
  std::vector<std::byte> data(static_cast<std::size_t>(bytes));
  std::uint32_t state = 12345;
  for (std::byte& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>((state >> 24) & 0xb7u);  // never all exponent bits
  }
  return data;
}

std::vector<float> inputs(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = 99;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<std::int32_t>(state >> 16) - 32768) * 0x1p-14f;
  }
  return values;
}

class Bench {
 public:
  Bench(const MeasureOptions& options,
        const std::function<void(const KernelTiming&, const Peaks&)>& on_timing)
      : options_(options),
        on_timing_(on_timing),
        pool_(options.num_threads),
        context_{kernels(options.isa), pool_, scratch_, {}} {}

  int threads() const { return pool_.size(); }

  Peaks peaks() {
    const Kernels& k = context_.kernels;
    const std::vector<float> buffer(static_cast<std::size_t>(options_.working_set_bytes / 4), 1.0f);
    const auto count = static_cast<std::int64_t>(buffer.size());
    std::atomic<float> sink{0};
    peaks_.read_bytes_per_second =
        static_cast<double>(count) * 4 / best([&] {
          pool_.for_ranges(count, 4096, [&](std::int64_t begin, std::int64_t end) {
            sink.store(k.read_stream(buffer.data() + begin, end - begin), std::memory_order_relaxed);
          });
        });
    constexpr std::int64_t kRounds = 200'000;
    peaks_.flops_per_second =
        2.0 * 96 * kRounds * pool_.size() /
        best(
            [&] {
              pool_.run([&](int, int) {
                sink.store(k.multiply_add_burst(kRounds, 0.5f), std::memory_order_relaxed);
              });
            },
            20);
    return peaks_;
  }

  std::vector<KernelTiming> run() {
    gemv();
    gemm();
    attention();
    index();
    return std::move(timings_);
  }

 private:
  double now() const {
    if (!options_.cpu_clock)
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)) / pool_.size();
  }
  double seconds_of(const std::function<void()>& work) const {
    const double start = now();
    work();
    return now() - start;
  }
  double best(const std::function<void()>& work, int factor = 1) const {
    double result = seconds_of(work);
    for (int i = 0; i < options_.passes * factor; ++i) result = std::min(result, seconds_of(work));
    return result;
  }
  bool wanted(const std::string& op) const { return op.find(options_.filter) != std::string::npos; }
  void add(std::string op, std::string shape, double bytes, double flops, Limit limit,
           const std::function<void()>& work, int factor = 1) {
    KernelTiming timing{std::move(op), std::move(shape), best(work, factor), bytes, flops, limit};
    on_timing_(timing, peaks_);
    timings_.push_back(std::move(timing));
  }

  // Matrices [rows, cols] that together fill the working set.
  struct Weights {
    std::vector<std::byte> codes, scales;
    std::vector<Matrix> matrices;
    double bytes = 0;
  };
  Weights weights(MatrixFormat format, ScaleFormat scale, std::int64_t rows, std::int64_t cols,
                  std::int64_t count) {
    Weights w;
    Matrix one;
    one.format = format;
    one.scale_format = scale;
    one.rows = rows;
    one.cols = cols;
    w.codes = pattern(one.code_bytes() * count);
    w.scales.assign(static_cast<std::size_t>(one.scale_bytes() * count),
                    scale == ScaleFormat::kE4M3 ? std::byte{0x38} : std::byte{118});
    for (std::int64_t i = 0; i < count; ++i) {
      one.codes = w.codes.data() + i * one.code_bytes();
      one.scales = w.scales.data() + i * one.scale_bytes();
      w.matrices.push_back(one);
    }
    w.bytes = static_cast<double>((one.code_bytes() + one.scale_bytes()) * count);
    return w;
  }

  struct FormatCase {
    const char* name;
    MatrixFormat format;
    ScaleFormat scale;
    std::int64_t rows, cols;
  };
  static std::vector<FormatCase> formats() {
    return {{"fp4 expert w1", MatrixFormat::kFP4, ScaleFormat::kE8M0, 2048, 4096},
            {"fp4 expert w2", MatrixFormat::kFP4, ScaleFormat::kE8M0, 4096, 2048},
            {"nvfp4 expert w1", MatrixFormat::kNVFP4, ScaleFormat::kE4M3, 2048, 4096},
            {"fp8 dense wo_b", MatrixFormat::kFP8, ScaleFormat::kE8M0, 4096, 8192},
            {"fp8 dense wq_b", MatrixFormat::kFP8, ScaleFormat::kE8M0, 32768, 1024},
            {"bf16 compressor", MatrixFormat::kBF16, ScaleFormat::kNone, 1024, 4096}};
  }
  static std::string shape_of(const FormatCase& c, std::int64_t count) {
    return fmt::format("{} x [{}, {}]", count, c.rows, c.cols);
  }

  // One token, weights that do not fit any cache: the rate is that of memory or of the decoder.
  void gemv() {
    for (const FormatCase& c : formats()) {
      const std::string op = std::string("gemv ") + c.name;
      if (!wanted(op)) continue;
      Matrix one{c.format, c.scale, c.rows, c.cols, nullptr, nullptr, 1.0f, 0.0f};
      const std::int64_t count = options_.working_set_bytes / (one.code_bytes() + one.scale_bytes()) + 1;
      const Weights w = weights(c.format, c.scale, c.rows, c.cols, count);
      const std::vector<float> x = inputs(c.cols);
      std::vector<float> out(static_cast<std::size_t>(c.rows));
      scratch_.reset();
      const InputKind kind = input_kind(one, ActQuant::kFp8);
      const std::vector<PreparedInput> input =
          prepare_inputs(context_, x.data(), 1, c.cols, c.cols, std::span(&kind, 1));
      std::vector<LinearJob> jobs;
      for (const Matrix& m : w.matrices)
        jobs.push_back({&m, 0, c.rows, input[0].rows, 1, out.data(), c.rows, true});
      add(op, shape_of(c, count), w.bytes, 2.0 * static_cast<double>(c.rows * c.cols * count), Limit::kRead,
          [&] { run_linear(context_, jobs); });
    }
  }

  void gemm() {
    const std::int64_t tokens = 384;
    for (const FormatCase& c : formats()) {
      const std::string op = std::string("gemm ") + c.name;
      if (!wanted(op)) continue;
      const Weights w = weights(c.format, c.scale, c.rows, c.cols, 1);
      const std::vector<float> x = inputs(tokens * c.cols);
      std::vector<float> out(static_cast<std::size_t>(tokens * c.rows));
      scratch_.reset();
      const InputKind kind = input_kind(w.matrices[0], ActQuant::kFp8);
      const std::vector<PreparedInput> input =
          prepare_inputs(context_, x.data(), tokens, c.cols, c.cols, std::span(&kind, 1));
      const LinearJob job{&w.matrices[0], 0, c.rows, input[0].rows, tokens, out.data(), c.rows, true};
      add(op, fmt::format("{} tokens, {}", tokens, shape_of(c, 1)), w.bytes,
          2.0 * static_cast<double>(tokens * c.rows * c.cols), Limit::kCompute,
          [&] { run_linear(context_, std::span(&job, 1)); });
    }
  }

  // One query's rows against its heads, scores and values: rows from the L2 cache.
  void attention() {
    for (const std::int64_t heads : {8, 64}) {
      const std::string op = fmt::format("attention {} heads", heads);
      if (!wanted(op)) continue;
      const std::int64_t rows = 640, dim = 512;
      const std::vector<float> q = inputs(heads * dim), data = inputs(rows * dim);
      std::vector<const float*> pointers;
      for (std::int64_t i = 0; i < rows; ++i) pointers.push_back(data.data() + i * dim);
      const Kernels& k = context_.kernels;
      add(
          op, fmt::format("{} rows of {}, each thread", rows, dim), static_cast<double>(rows * dim * 4),
          4.0 * static_cast<double>(heads * rows * dim) * pool_.size(), Limit::kCompute,
          [&] {
            pool_.run([&](int, int) {
              std::vector<float> scores(static_cast<std::size_t>(heads * rows)),
                  o(static_cast<std::size_t>(heads * dim));
              k.row_scores(q.data(), heads, dim, pointers.data(), rows, 0.01f, scores.data(), rows);
              for (std::int64_t h = 0; h < heads; ++h) k.softmax(scores.data() + h * rows, rows, 0.0f, true);
              k.weighted_rows(scores.data(), rows, heads, dim, pointers.data(), rows, o.data());
            });
          },
          5);
    }
  }

  // Packed FP4 keys of a long context against one query. The byte multiply is not the yardstick's
  // instruction, so shares above 1 are possible.
  void index() {
    const std::int64_t width = 128, keys = 65536;
    const RowLayout layout = index_fp4_layout(static_cast<std::int32_t>(width));
    const std::vector<std::byte> data = pattern(keys * layout.data_bytes);
    const std::vector<std::byte> scales(static_cast<std::size_t>(keys * layout.scale_bytes), std::byte{127});
    const Kernels& k = context_.kernels;
    std::vector<float> scores(static_cast<std::size_t>(keys));
    for (const std::int64_t heads : {8, 64}) {
      const std::string op = fmt::format("index score fp4 {} heads", heads);
      if (!wanted(op)) continue;
      std::vector<IndexQuery> queries(static_cast<std::size_t>(heads));
      std::vector<float> q = inputs(width), head_weights(static_cast<std::size_t>(heads), 0.1f);
      k.quantize_e2m1(q.data(), width, 32);
      for (IndexQuery& query : queries) k.index_query(q.data(), width, &query);
      add(
          op, fmt::format("1 query, {} keys of {}", keys, width),
          static_cast<double>(keys * layout.row_bytes()), 2.0 * static_cast<double>(keys * heads * width),
          Limit::kCompute,
          [&] {
            pool_.for_ranges(keys, kIndexTile, [&](std::int64_t begin, std::int64_t end) {
              IndexTile tile;
              for (std::int64_t key = begin; key < end; key += kIndexTile) {
                const std::byte *rows[kIndexTile], *row_scales[kIndexTile];
                for (std::int64_t i = 0; i < kIndexTile; ++i) {
                  rows[i] = data.data() + (key + i) * layout.data_bytes;
                  row_scales[i] = scales.data() + (key + i) * layout.scale_bytes;
                }
                k.index_tile(rows, row_scales, width, &tile);
                k.index_scores(queries.data(), head_weights.data(), heads, width, &tile, 1, false,
                               scores.data() + key);
              }
            });
          },
          5);
    }
    if (!wanted("top-k")) return;
    scores = inputs(keys);
    std::vector<std::int32_t> selected(512);
    TopkScratch scratch;
    add(
        "top-k", fmt::format("512 of {}", keys), static_cast<double>(keys * 4), 0, Limit::kRead,
        [&] { select_topk(scores.data(), static_cast<std::int32_t>(keys), 512, selected.data(), scratch); },
        5);
  }

  MeasureOptions options_;
  const std::function<void(const KernelTiming&, const Peaks&)>& on_timing_;
  ThreadPool pool_;
  Scratch scratch_;
  Context context_;
  Peaks peaks_;
  std::vector<KernelTiming> timings_;
};

}  // namespace

Measurement measure_kernels(const MeasureOptions& options, const std::function<void(const Peaks&)>& on_peaks,
                            const std::function<void(const KernelTiming&, const Peaks&)>& on_timing) {
  Bench bench(options, on_timing);
  Measurement measurement{options, {}, {}};
  measurement.options.num_threads = bench.threads();
  measurement.peaks = bench.peaks();
  on_peaks(measurement.peaks);
  measurement.timings = bench.run();
  return measurement;
}

}  // namespace pivot::simd
