// Kernels that no operator runs alone, timed by themselves: exact top-k, index scores by key format, draws.
#include <algorithm>
#include <array>

#include "ops/cuda/cuda_backend.h"

namespace pivot::cuda {
namespace {

// Device memory of one measurement.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    if (memory_ != nullptr) cudaFree(memory_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Result<> allocate(std::int64_t bytes, std::string_view purpose) {
    return check_cuda(cudaMalloc(&memory_, static_cast<std::size_t>(bytes)), purpose);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  // Copies `host` into memory of its size.
  template <class T>
  Result<> fill(const std::vector<T>& host, std::string_view purpose) {
    PIVOT_TRY_VOID(allocate(static_cast<std::int64_t>(host.size() * sizeof(T)), purpose));
    return check_cuda(cudaMemcpy(memory_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
                      purpose);
  }

 private:
  void* memory_ = nullptr;
};

// Seconds of one of `launches` calls of `record`, which a graph runs one after the other: the median of nine.
template <class Record>
double time_chain(cudaStream_t stream, int launches, const Record& record) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  for (int i = 0; i < launches; ++i) record(i);  // workspaces grow, kernels load
  require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a chain");
  for (int i = 0; i < launches; ++i) record(i);
  require_cuda(cudaStreamEndCapture(stream, &graph), "capturing a chain");
  require_cuda(cudaGraphInstantiate(&ready, graph, 0), "instantiating a chain");
  cudaEvent_t begin, end;
  require_cuda(cudaEventCreate(&begin), "creating an event");
  require_cuda(cudaEventCreate(&end), "creating an event");
  std::array<float, 9> milliseconds{};
  for (float& ms : milliseconds) {
    require_cuda(cudaEventRecord(begin, stream), "recording an event");
    require_cuda(cudaGraphLaunch(ready, stream), "running a chain");
    require_cuda(cudaEventRecord(end, stream), "recording an event");
    require_cuda(cudaEventSynchronize(end), "running a chain");
    require_cuda(cudaEventElapsedTime(&ms, begin, end), "reading an event");
  }
  require_cuda(cudaEventDestroy(begin), "releasing an event");
  require_cuda(cudaEventDestroy(end), "releasing an event");
  require_cuda(cudaGraphExecDestroy(ready), "releasing a chain");
  require_cuda(cudaGraphDestroy(graph), "releasing a chain");
  std::sort(milliseconds.begin(), milliseconds.end());
  return static_cast<double>(milliseconds[milliseconds.size() / 2]) * 1e-3 / launches;
}

constexpr std::int32_t kChosen = 512;

// Scores lie in the L2, as the kernel that wrote them leaves them.
Result<CudaKernelTime> time_topk(std::int64_t entries, bool clusters, cudaStream_t stream) {
  Memory scores, selected, count;
  PIVOT_TRY_VOID(scores.allocate(entries * 4, "scores"));
  PIVOT_TRY_VOID(selected.allocate(kChosen * 4, "a selection"));
  PIVOT_TRY_VOID(count.allocate(4, "a selection"));
  launch_random_floats(scores.as<float>(), entries, 0.0f, 1.0f, 3, stream);
  TopkRows rows;
  rows.scores = scores.as<float>();
  rows.stride = entries;
  rows.rows = 1;
  rows.length = static_cast<std::int32_t>(entries);
  rows.topk = kChosen;
  rows.selected = selected.as<std::int32_t>();
  rows.count = count.as<std::int32_t>();
  const double seconds = time_chain(stream, 20, [&](int) { launch_topk_rows(rows, clusters, stream); });
  return CudaKernelTime{fmt::format("top-{} of {}", kChosen, entries), seconds,
                        static_cast<double>(entries) * 4};
}

// One query at the end of `tokens` tokens; every launch reads other keys, so that they come from memory.
Result<CudaKernelTime> time_scores(const char* name, const RowLayout& layout, std::int64_t tokens,
                                   int multiprocessors, cudaStream_t stream) {
  constexpr std::int32_t kPageRows = 64, kHeads = 64, kDim = 128;
  const std::int64_t entries = tokens / 4, pages = entries / kPageRows;
  const auto copies = static_cast<int>(
      std::max<std::int64_t>(2, (std::int64_t{512} << 20) / (pages * layout.page_bytes(kPageRows))));
  Memory keys, table, q, weights, scores, positions, span_of, spans;
  PIVOT_TRY_VOID(keys.allocate(copies * pages * layout.page_bytes(kPageRows), "index keys"));
  PIVOT_TRY_VOID(q.allocate(kHeads * kDim * 2, "an index query"));
  PIVOT_TRY_VOID(weights.allocate(kHeads * 4, "index weights"));
  PIVOT_TRY_VOID(scores.allocate(entries * 4, "scores"));
  std::vector<std::int32_t> all_pages(static_cast<std::size_t>(copies * pages));
  for (std::size_t i = 0; i < all_pages.size(); ++i) all_pages[i] = static_cast<std::int32_t>(i);
  PIVOT_TRY_VOID(table.fill(all_pages, "a page table"));
  PIVOT_TRY_VOID(positions.fill(std::vector{static_cast<std::int32_t>(tokens - 1)}, "a position"));
  PIVOT_TRY_VOID(span_of.fill(std::vector<std::int32_t>{0}, "a span"));
  std::vector<SequenceSpan> each;  // launch i reads the keys of page table row i
  for (std::int32_t i = 0; i < copies; ++i)
    each.push_back({0, 1, static_cast<std::int32_t>(tokens - 1), 0, i});
  PIVOT_TRY_VOID(spans.fill(each, "spans"));
  launch_random_rows(keys.as<std::byte>(), layout.page_bytes(kPageRows), copies * pages, kPageRows, layout, 5,
                     stream);
  launch_random_bf16(q.as<std::byte>(), kHeads * kDim, 1.0f, 6, stream);
  launch_random_floats(weights.as<float>(), kHeads, 0.0f, 1.0f, 7, stream);
  IndexArguments a;
  a.batch.num_tokens = a.batch.num_spans = 1;
  a.batch.positions = positions.as<std::int32_t>();
  a.batch.span_of = span_of.as<std::int32_t>();
  a.heads = kHeads;
  a.dim = kDim;
  a.index_q = q.as<void>();
  a.index_weights = weights.as<float>();
  a.keys = {keys.as<std::byte>(),     layout.page_bytes(kPageRows),    kPageRows, layout,
            table.as<std::int32_t>(), static_cast<std::int32_t>(pages)};
  a.topk = kChosen;
  a.scores = scores.as<float>();
  a.score_stride = entries;
  const double seconds = time_chain(stream, copies, [&](int i) {
    a.batch.spans = spans.as<SequenceSpan>() + i;
    launch_index_scores(a, multiprocessors, stream);
  });
  return CudaKernelTime{fmt::format("index scores, {} keys, {} tokens", name, tokens), seconds,
                        static_cast<double>(entries) * layout.row_bytes()};
}

Result<CudaKernelTime> time_draw(const char* name, std::int32_t vocab, std::int32_t draws,
                                 const DrawParams& params, bool clusters, cudaStream_t stream) {
  Memory logits, rows, all_params, results, segments, selected, count;
  PIVOT_TRY_VOID(logits.allocate(std::int64_t{4} * vocab * draws, "logits"));
  launch_random_floats(logits.as<float>(), std::int64_t{vocab} * draws, 0.0f, 8.0f, 9, stream);
  std::vector<std::int32_t> each(static_cast<std::size_t>(draws));
  for (std::int32_t i = 0; i < draws; ++i) each[static_cast<std::size_t>(i)] = i;
  PIVOT_TRY_VOID(rows.fill(each, "rows"));
  PIVOT_TRY_VOID(all_params.fill(std::vector<DrawParams>(static_cast<std::size_t>(draws), params), "draws"));
  PIVOT_TRY_VOID(results.allocate(draws * static_cast<std::int64_t>(sizeof(DrawResult)), "draws"));
  PIVOT_TRY_VOID(segments.allocate(
      std::int64_t{draws} * draw_segments(vocab) * static_cast<std::int64_t>(sizeof(DrawSegment)), "draws"));
  PIVOT_TRY_VOID(selected.allocate(std::int64_t{draws} * kMaxSortedDraw * 4, "draws"));
  PIVOT_TRY_VOID(count.allocate(std::int64_t{draws} * 4, "draws"));
  DrawArguments a;
  a.logits = logits.as<float>();
  a.vocab = vocab;
  a.draws = draws;
  a.rows = rows.as<std::int32_t>();
  a.params = all_params.as<DrawParams>();
  a.results = results.as<DrawResult>();
  a.segments = segments.as<DrawSegment>();
  a.selected = selected.as<std::int32_t>();
  a.selected_count = count.as<std::int32_t>();
  const bool sorted = params.temperature != 0.0f && draw_is_sorted(params, vocab);
  const double seconds = time_chain(stream, 20, [&](int) { launch_draw(a, sorted, clusters, stream); });
  return CudaKernelTime{fmt::format("draw, {}, {} rows", name, draws), seconds,
                        std::int64_t{4} * vocab * 1.0 * draws};
}

}  // namespace

Result<std::vector<CudaKernelTime>> CudaBackend::kernel_times() {
  select_device();
  std::vector<CudaKernelTime> times;
  for (const std::int64_t entries : {32768, 131072, 262144}) {
    PIVOT_TRY(CudaKernelTime time, time_topk(entries, switches_.cluster_topk, stream_));
    times.push_back(std::move(time));
  }
  const std::pair<const char*, RowLayout> keys[] = {
      {"fp4", index_fp4_layout(128)}, {"fp8", index_fp8_layout(128)}, {"bf16", bf16_layout(128)}};
  for (const auto& [name, layout] : keys)
    for (const std::int64_t tokens : {std::int64_t{1} << 17, std::int64_t{1} << 20}) {
      PIVOT_TRY(CudaKernelTime time,
                time_scores(name, layout, tokens, properties_.multiProcessorCount, stream_));
      times.push_back(std::move(time));
    }
  constexpr std::int32_t kVocab = 129280;
  const std::pair<const char*, DrawParams> draws[] = {{"greedy", {.temperature = 0.0f}},
                                                      {"temperature", {.temperature = 1.0f}},
                                                      {"top-p 0.9", {.temperature = 0.6f, .top_p = 0.9f}}};
  for (const auto& [name, params] : draws)
    for (const std::int32_t rows : {1, 32}) {
      PIVOT_TRY(CudaKernelTime time, time_draw(name, kVocab, rows, params, switches_.cluster_topk, stream_));
      times.push_back(std::move(time));
    }
  return times;
}

}  // namespace pivot::cuda
