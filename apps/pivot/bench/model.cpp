#include "bench/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "bench/cost.h"
#include "cache/synthesis.h"
#include "engine/session.h"
#include "ops/timing_backend.h"

namespace pivot::cli {
namespace {

// Distinct routed experts of a step, summed over the layers.
class ExpertCounter : public TapSink {
 public:
  bool wants(std::string_view name, std::int32_t) const override { return name == "gate_ids"; }
  void take(const Tap& tap) override {
    distinct_ += static_cast<std::int64_t>(std::set<std::int32_t>(tap.ids.begin(), tap.ids.end()).size());
  }
  std::int64_t distinct() const { return distinct_; }

 private:
  std::int64_t distinct_ = 0;
};

double bytes_of(const CompressorWeights& w) {
  return cli::bytes_of(w.wkv) + cli::bytes_of(w.wgate) +
         4.0 * static_cast<double>(w.ape.size() + w.norm.size());
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool finite_logits(const Model& model, std::int32_t rows) {
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  for (std::int32_t i = 0; i < rows; ++i) {
    model.read_logits(i, logits);
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) return false;
  }
  return true;
}

}  // namespace

double dense_bytes(const LayerWeights& layer) {
  const AttentionWeights& a = layer.attn;
  double bytes = bytes_of(layer.attn_hc) + bytes_of(layer.ffn_hc) + bytes_of(layer.ffn.gate) +
                 bytes_of(layer.ffn.shared);
  for (const Matrix* m : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b}) bytes += bytes_of(*m);
  if (a.compressor) bytes += bytes_of(*a.compressor);
  if (a.indexer)
    bytes += bytes_of(a.indexer->wq_b) + bytes_of(a.indexer->weights_proj) + bytes_of(a.indexer->compressor);
  return bytes;
}

double dense_bytes(const ModelWeights& w) {
  double bytes = bytes_of(w.head) + 4.0 * static_cast<double>(w.hc_head.fn.size() + w.norm.size());
  for (const LayerWeights& layer : w.layers) bytes += dense_bytes(layer);
  return bytes;
}

double expert_bytes(const ModelWeights& w) { return bytes_of(w.layers.front().ffn.experts.front()); }

double cache_bytes(const ModelConfig& c, const CacheLayout& layout, std::int64_t context) {
  double bytes = 0;
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const int ratio = c.ratio(l);
    double rows = static_cast<double>(std::min<std::int64_t>(context, c.sliding_window));
    if (ratio == 4) {
      const std::int64_t entries = context / 4;
      rows += static_cast<double>(std::min<std::int64_t>(entries, c.index_topk));
      if (entries > c.index_topk) bytes += static_cast<double>(entries) * layout.index_key.row_bytes();
    } else if (ratio == 128) {
      rows += static_cast<double>(context / 128);
    }
    bytes += rows * layout.kv.row_bytes();
  }
  return bytes;
}

Result<std::unique_ptr<BenchModel>> BenchModel::create(const std::shared_ptr<Backend>& backend,
                                                       const std::shared_ptr<const ModelWeights>& weights,
                                                       const Knobs& knobs, const BenchShape& shape,
                                                       std::shared_ptr<Backend> runner) {
  const ModelConfig& config = weights->config;
  std::unique_ptr<BenchModel> bench(new BenchModel());
  // The last step ends at the longest sequence there can be.
  const std::int64_t first = std::min(shape.context, config.max_position_embeddings - shape.new_tokens);
  if (first < 0)
    return fail(ErrorCode::kInvalidArgument, "{} new tokens exceed the model's {} positions",
                shape.new_tokens, config.max_position_embeddings);
  PIVOT_TRY(CacheLayout layout, make_cache_layout(config, knobs));
  ModelOptions options;
  options.knobs = knobs;
  options.max_context = first + shape.new_tokens;
  options.max_step_tokens = shape.step_tokens;
  options.max_step_spans = options.max_logit_rows = shape.sequences;
  PIVOT_TRY(bench->model_, Model::create(weights, runner == nullptr ? backend : std::move(runner), options));
  PIVOT_TRY(bench->tables_, PageTables::create(backend, layout, shape.sequences, options.max_context));
  const CachePoolOptions pool_options =
      CachePoolOptions::for_sequences(layout, shape.sequences, options.max_context);
  PIVOT_TRY(std::unique_ptr<CachePool> pool, CachePool::create(backend, layout, pool_options));
  bench->pool_ = std::move(pool);
  std::vector<const SequenceState*> rows;
  const std::vector<TokenId> history(static_cast<std::size_t>(first), TokenId{0});
  for (std::int32_t i = 0; i < shape.sequences; ++i) {
    PIVOT_TRY(std::unique_ptr<SequenceState> state, SequenceState::create(bench->pool_));
    PIVOT_TRY_VOID(state->reserve(options.max_context));
    state->append(history);
    rows.push_back(state.get());
    bench->sequences_.push_back(std::move(state));
  }
  bench->tables_->upload(rows);
  bench->views_ = bench->pool_->views(bench->tables_->tables());
  bench->position_ = first;
  if (backend->name() == "cuda")
    PIVOT_TRY_VOID(synthesize_cache(*backend, bench->views_, pool_options.num_slots,
                                    pool_options.num_pages[0], pool_options.num_pages[1]));
  else
    synthesize_host_cache(bench->views_, pool_options.num_slots, pool_options.num_pages[0],
                          pool_options.num_pages[1]);
  return bench;
}

Result<> BenchModel::step(std::int32_t tokens_each, TapSink* sink) {
  const std::int32_t sequences = step_sequences_;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(sequences * tokens_each)), logit_rows;
  const auto vocabulary = static_cast<std::uint32_t>(model_->config().vocab_size);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random_() % vocabulary);
  std::vector<SequenceSpan> spans;
  for (std::int32_t i = 0; i < sequences; ++i) {
    spans.push_back({i * tokens_each, tokens_each, static_cast<std::int32_t>(position_), slot(i), i});
    logit_rows.push_back((i + 1) * tokens_each - 1);
  }
  PIVOT_TRY_VOID(model_->forward({ids, spans, logit_rows, views_}, sink));
  position_ += tokens_each;
  return {};
}

Result<> BenchModel::decode(TapSink* sink) {
  step_sequences_ = static_cast<std::int32_t>(sequences_.size());
  return step(1, sink);
}

Result<> BenchModel::prefill(std::int32_t tokens, TapSink* sink) {
  step_sequences_ = 1;
  return step(tokens, sink);
}

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// `operators`, `walls`: of each timed step, its operators' sum and its whole time. Where the time went is
// told of all steps together, how much there was of the median step: one that the system held up must not
// count for the others.
Breakdown breakdown_of(const TimingBackend& timing, const ModelConfig& config,
                       const std::vector<double>& operators, const std::vector<double>& walls) {
  Breakdown result;
  const auto steps = static_cast<double>(operators.size());
  const double scale = median(operators) / (timing.total_seconds() / steps);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < operators.size(); ++i) ratios.push_back(walls[i] / operators[i]);
  double layers[3] = {0, 0, 0};
  const auto kind = [](int ratio) { return ratio == 0 ? 0 : ratio == 4 ? 1 : 2; };
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) layers[kind(config.ratio(l))] += 1;
  for (const OperatorTime& time : timing.times()) {
    const double seconds = time.seconds / steps * scale;
    auto row = std::find_if(result.rows.begin(), result.rows.end(),
                            [&](const Breakdown::Row& r) { return r.op == time.op; });
    if (row == result.rows.end()) row = result.rows.insert(row, {std::string(time.op), 0, 0});
    row->calls_per_step += static_cast<double>(time.calls) / steps;
    row->seconds_per_step += seconds;
    result.operator_seconds += seconds;
    if (time.layer < 0)
      result.outside_layers_seconds += seconds;
    else
      result.layer_seconds[kind(config.ratio(time.layer))] +=
          seconds / layers[kind(config.ratio(time.layer))];
  }
  result.step_seconds = result.operator_seconds * median(ratios);
  return result;
}

}  // namespace

double extrapolate_seconds(const Breakdown& breakdown, const ModelConfig& whole) {
  const double* known = breakdown.layer_seconds;
  const double slowest = std::max({known[0], known[1], known[2]});
  double seconds = breakdown.outside_layers_seconds;
  for (const int ratio : whole.compress_ratios) {
    const double own = known[ratio == 0 ? 0 : ratio == 4 ? 1 : 2];
    seconds += own > 0 ? own : slowest;
  }
  return seconds;
}

Result<DecodeResult> bench_decode(const std::shared_ptr<Backend>& backend,
                                  const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                  const DecodeCase& wanted) {
  constexpr std::int32_t kWarmUp = 4;  // one that counts experts, one as it comes, one captured, one replayed
  const std::int32_t timed = wanted.breakdown ? 2 * wanted.steps : wanted.steps;
  const auto timing = wanted.breakdown ? std::make_shared<TimingBackend>(backend) : nullptr;
  PIVOT_TRY(const std::unique_ptr<BenchModel> bench,
            BenchModel::create(backend, weights, knobs,
                               {wanted.context, wanted.batch, kWarmUp + timed, wanted.batch}, timing));
  ExpertCounter experts;
  PIVOT_TRY_VOID(bench->decode(&experts));
  for (std::int32_t i = 1; i < kWarmUp; ++i) PIVOT_TRY_VOID(bench->decode());
  std::vector<double> seconds;
  std::vector<double> operators, walls;
  for (std::int32_t i = 0; i < wanted.steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    PIVOT_TRY_VOID(bench->decode());
    seconds.push_back(seconds_since(begin));
    if (timing == nullptr) continue;
    timing->set_timing(true);
    const double before = timing->total_seconds();
    const auto timed_begin = std::chrono::steady_clock::now();
    PIVOT_TRY_VOID(bench->decode());
    walls.push_back(seconds_since(timed_begin));
    operators.push_back(timing->total_seconds() - before);
    timing->set_timing(false);
  }
  DecodeResult result;
  result.step_seconds = median(seconds);
  result.best_step_seconds = *std::min_element(seconds.begin(), seconds.end());
  const auto layers = static_cast<double>(weights->config.num_hidden_layers);
  result.experts_per_layer = static_cast<double>(experts.distinct()) / layers;
  result.bytes_per_step = dense_bytes(*weights) +
                          static_cast<double>(experts.distinct()) * expert_bytes(*weights) +
                          wanted.batch * cache_bytes(weights->config, bench->layout(), wanted.context);
  result.logits_finite = finite_logits(bench->model(), wanted.batch);
  if (timing != nullptr) result.breakdown = breakdown_of(*timing, weights->config, operators, walls);
  return result;
}

Result<double> bench_session_step(const std::shared_ptr<Backend>& backend,
                                  const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                  std::int64_t context, std::int32_t steps) {
  SessionOptions options;
  options.weights = weights;
  options.backend = backend;
  options.knobs = knobs;
  options.max_context = context + steps + 1;
  PIVOT_TRY(const std::unique_ptr<Session> session, Session::create(std::move(options)));
  std::mt19937 random(5);
  std::vector<TokenId> prompt;
  for (std::int64_t i = 0; i < context; ++i)
    prompt.push_back(TokenId{
        static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(weights->config.vocab_size))});
  PIVOT_TRY_VOID(session->prefill(prompt));
  std::vector<double> seconds;
  for (std::int32_t i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    PIVOT_TRY(const SampledToken token, session->sample(SamplingParams::greedy()));
    PIVOT_TRY_VOID(session->decode(token.id));
    seconds.push_back(seconds_since(begin));
  }
  return median(seconds);
}

Result<PrefillResult> bench_prefill(const std::shared_ptr<Backend>& backend,
                                    const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                    const PrefillCase& wanted) {
  const auto chunk = static_cast<std::int32_t>(std::min<std::int64_t>(wanted.chunk, wanted.tokens));
  const auto run = [&](std::int64_t tokens,
                       const std::shared_ptr<TimingBackend>& timing) -> Result<PrefillResult> {
    PIVOT_TRY(const std::unique_ptr<BenchModel> bench,
              BenchModel::create(backend, weights, knobs, {0, 1, tokens, chunk}, timing));
    PrefillResult result;
    if (timing != nullptr) timing->set_timing(true);
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t done = 0; done < tokens; done += chunk)
      PIVOT_TRY_VOID(bench->prefill(static_cast<std::int32_t>(std::min<std::int64_t>(chunk, tokens - done))));
    result.seconds = seconds_since(begin);
    result.logits_finite = finite_logits(bench->model(), 1);
    if (timing != nullptr)
      result.breakdown = breakdown_of(*timing, weights->config, {timing->total_seconds()}, {result.seconds});
    return result;
  };
  PIVOT_TRY_VOID(run(chunk, nullptr));
  PIVOT_TRY(PrefillResult result, run(wanted.tokens, nullptr));
  if (wanted.breakdown) {
    PIVOT_TRY(PrefillResult timed, run(wanted.tokens, std::make_shared<TimingBackend>(backend)));
    result.breakdown = std::move(timed.breakdown);
  }
  return result;
}

}  // namespace pivot::cli
