#include "bench/ladder.h"

#include <algorithm>
#include <cmath>

#include "engine/devices.h"

namespace pivot::cli {
namespace {

// Logits after a prompt and after each of `steps` forced tokens: a prefill step and single-token steps, so
// that both paths of a back-end are compared.
Result<std::vector<float>> logits_of(const std::shared_ptr<Backend>& backend,
                                     const std::shared_ptr<const ModelWeights>& weights, const Knobs& knobs,
                                     std::span<const std::int32_t> ids, std::size_t prompt) {
  const auto length = static_cast<std::int64_t>(ids.size());
  PIVOT_TRY(CacheLayout layout, make_cache_layout(weights->config, knobs));
  ModelOptions options;
  options.knobs = knobs;
  options.max_context = length;
  options.max_step_tokens = static_cast<std::int32_t>(prompt);
  PIVOT_TRY(const auto model, Model::create(weights, backend, options));
  PIVOT_TRY(const auto tables, PageTables::create(backend, layout, 1, length));
  PIVOT_TRY(std::unique_ptr<CachePool> made,
            CachePool::create(backend, layout, CachePoolOptions::for_sequences(layout, 1, length)));
  const std::shared_ptr<CachePool> pool = std::move(made);
  PIVOT_TRY(const std::unique_ptr<SequenceState> state, SequenceState::create(pool));
  PIVOT_TRY_VOID(state->reserve(length));
  const SequenceState* const rows[] = {state.get()};
  tables->upload(rows);
  const std::vector<LayerCacheView> views = pool->views(tables->tables());
  const auto vocabulary = static_cast<std::size_t>(weights->config.vocab_size);
  std::vector<float> logits;
  for (std::size_t at = 0; at < ids.size();) {
    const std::size_t tokens = at == 0 ? prompt : 1;
    const SequenceSpan span{0, static_cast<std::int32_t>(tokens), static_cast<std::int32_t>(at),
                            state->slot(), 0};
    const std::int32_t last = static_cast<std::int32_t>(tokens) - 1;
    PIVOT_TRY_VOID(model->forward({ids.subspan(at, tokens), {&span, 1}, {&last, 1}, views}));
    logits.resize(logits.size() + vocabulary);
    model->read_logits(0, std::span(logits).last(vocabulary));
    at += tokens;
  }
  return logits;
}

Numerics compare(const std::vector<float>& oracle, const std::vector<float>& ours, std::size_t vocabulary) {
  Numerics result;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < oracle.size(); ++i) {
    const double d = static_cast<double>(ours[i]) - oracle[i];
    difference += d * d;
    norm += static_cast<double>(oracle[i]) * oracle[i];
    result.largest = std::max(result.largest, std::fabs(d));
  }
  result.relative_l2 = std::sqrt(difference / std::max(norm, 1e-300));
  for (std::size_t row = 0; row < oracle.size(); row += vocabulary) {
    const auto best = [&](const std::vector<float>& v) {
      const auto begin = v.begin() + static_cast<std::ptrdiff_t>(row);
      return std::max_element(begin, begin + static_cast<std::ptrdiff_t>(vocabulary)) - begin;
    };
    ++result.rows;
    result.same_argmax += best(oracle) == best(ours);
  }
  return result;
}

}  // namespace

Result<std::vector<Rung>> bench_ladder(const std::shared_ptr<Backend>& backend,
                                       const std::shared_ptr<const ModelWeights>& weights,
                                       const std::shared_ptr<const ModelWeights>& numerics_weights,
                                       const Knobs& knobs, const LadderCase& wanted) {
  const std::vector<BackendSwitch> switches = backend_switches(*backend);
  if (switches.empty())
    return fail(ErrorCode::kUnsupported, "the {} back-end has no switches to climb", backend->name());
  PIVOT_TRY(const std::shared_ptr<Backend> oracle, make_backend("cpu-reference"));
  const auto vocabulary = static_cast<std::size_t>(numerics_weights->config.vocab_size);
  const std::size_t prompt = wanted.prompt.size() - std::min<std::size_t>(wanted.prompt.size() - 1, 16);
  PIVOT_TRY(const std::vector<float> expected,
            logits_of(oracle, numerics_weights, knobs, wanted.prompt, prompt));
  for (const BackendSwitch& s : switches) PIVOT_TRY_VOID(set_backend_switch(*backend, s.name, false));
  std::vector<Rung> rungs;
  for (std::size_t i = 0; i <= switches.size(); ++i) {
    Rung rung{"stock", "eager launches, one kernel after another, every step a kernel of its own", {}, {}};
    if (i > 0) {
      rung.name = "+ " + std::string(switches[i - 1].name);
      rung.effect = switches[i - 1].effect;
      PIVOT_TRY_VOID(set_backend_switch(*backend, switches[i - 1].name, true));
    }
    PIVOT_TRY(rung.speed, bench_decode(backend, weights, knobs, wanted.decode));
    PIVOT_TRY(const std::vector<float> ours,
              logits_of(backend, numerics_weights, knobs, wanted.prompt, prompt));
    rung.numerics = compare(expected, ours, vocabulary);
    rungs.push_back(std::move(rung));
  }
  return rungs;
}

}  // namespace pivot::cli
