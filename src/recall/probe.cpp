#include "recall/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric/quantize.h"
#include "ops/cpu/reference/backend.h"
#include "ops/cpu/reference/compressor.h"
#include "ops/cpu/reference/indexer.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/rope.h"
#include "ops/rope.h"
#include "recall/attention_share.h"
#include "recall/device_rows.h"
#include "recall/probe_shadow.h"

namespace pivot::recall {
namespace {

using namespace reference;

double deviation(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const float value : values) sum += value, squares += static_cast<double>(value) * value;
  const auto n = static_cast<double>(values.size());
  return std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
}

std::int64_t rank_of(const std::vector<float>& scores, std::int64_t entry) {
  const float score = scores[static_cast<std::size_t>(entry)];
  return std::count_if(scores.begin(), scores.end(), [score](float other) { return other > score; });
}

}  // namespace

Probe::Probe(std::shared_ptr<Backend> inner, std::shared_ptr<const ModelWeights> weights,
             const ProbeOptions& options)
    : ForwardingBackend(std::move(inner)),
      weights_(std::move(weights)),
      options_(options),
      pool_(options.num_threads) {
  const ModelConfig& config = weights_->config;
  rope_main_ = rope_frequencies(config.rope_main, config.qk_rope_head_dim);
  rope_compress_ = rope_frequencies(config.rope_compress, config.qk_rope_head_dim);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) layers_.push_back(std::make_unique<Layer>());
  if (options_.audit) oracle_ = make_reference_backend(options.num_threads);
}

Probe::~Probe() = default;

void Probe::begin_case(const Case& test) {
  fidelity_.clear();
  facts_ = test.facts;
  prompt_tokens_ = static_cast<std::int64_t>(test.prompt.size());
  paused_ = false;
}

bool Probe::measures(std::int64_t position) const {
  if (paused_) return false;
  if (position >= prompt_tokens_ - options_.last_tokens) return true;
  return options_.sample_every > 0 && position % options_.sample_every == 0;
}

void Probe::note(Part part, std::int32_t layer, std::int64_t position, double difference, double limit) {
  AuditCount& count = audit_[static_cast<std::size_t>(part)];
  ++count.checked;
  count.worst = std::max(count.worst, difference);
  if (difference <= limit) return;
  if (count.different++ == 0) count.layer = layer, count.position = position;
}

void Probe::latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                   const LatentParams& p) {
  const bool alone = batch.num_spans == 1;
  const std::int32_t topk = knobs.index_topk == kTopkFromCheckpoint
                                ? static_cast<std::int32_t>(layer.config->index_topk)
                                : knobs.index_topk;
  wanted_topk_ = topk;
  index_weights_ = p.index_weights;
  const bool watched = alone && (layer.ratio == 4 || options_.audit);
  Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
  if (watched && options_.audit) audit_states(layer, batch.host_spans[0], p);
  inner().latent(layer, knobs, batch, p);
  if (!watched) return;

  const SequenceSpan& span = batch.host_spans[0];
  const ModelConfig& config = *layer.config;
  const AttentionWeights& weights = weights_->layers[static_cast<std::size_t>(layer.layer)].attn;
  const std::vector<float> x =
      read_acts(inner(), p.x, 0, std::int64_t{batch.num_tokens} * config.hidden_size);
  const LinearInput input = plain_input(x.data(), batch.num_tokens, config.hidden_size);
  if (layer.ratio == 4) shadow.index.advance(*weights.indexer, rope_compress_, config, span, input, pool_);
  if (options_.audit) {
    if (layer.ratio != 0)
      shadow.main.advance(*weights.compressor, rope_compress_, config, span, input, pool_);
    audit_rows(layer, knobs, span, p, x);
  }
  shadow.end = span.start_position + span.num_tokens;
}

void Probe::query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                  const QueryParams& p) {
  inner().query(layer, knobs, batch, p);
  index_q_ = p.index_q;
  if (layer.ratio != 4 || batch.num_spans != 1 || p.index_q == nullptr) return;
  const SequenceSpan& span = batch.host_spans[0];
  const ModelConfig& config = *layer.config;
  Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
  shadow.queries.clear();
  const Matrix& wq_b = weights_->layers[static_cast<std::size_t>(layer.layer)].attn.indexer->wq_b;
  const std::int64_t width = config.index_n_heads * config.index_head_dim;
  for (std::int32_t t = 0; t < span.num_tokens; ++t) {
    const std::int32_t position = span.start_position + t;
    const bool audited = options_.audit && t == span.num_tokens - 1;
    if (!measures(position) && !audited) continue;
    const std::vector<float> qr =
        read_acts(inner(), p.qr, std::int64_t{t} * config.q_lora_rank, config.q_lora_rank);
    std::vector<float> q = linear(wq_b, plain_input(qr.data(), 1, config.q_lora_rank), pool_);
    finish_index_query(config, rope_compress_, position, Rounding(Activations::kF32), q.data());
    if (audited) {
      const Rounding round(knobs.activations);
      std::vector<float> wanted =
          linear(wq_b, linear_input(wq_b, knobs.dense_act, qr.data(), 1, config.q_lora_rank), round, pool_);
      finish_index_query(config, rope_compress_, position, round, wanted.data());
      for (std::int64_t h = 0; h < config.index_n_heads; ++h)
        round_key(wanted.data() + h * config.index_head_dim, config.index_head_dim, knobs.index_keys);
      const std::vector<float> found = read_acts(inner(), p.index_q, std::int64_t{t} * width, width);
      note(Part::kIndexQuery, layer.layer, position, relative_difference(found, wanted), 0.2);
    }
    if (measures(position)) shadow.queries.emplace_back(t, std::move(q));
  }
}

void Probe::attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                      const AttentionParams& p) {
  if (batch.num_spans == 1) {
    const SequenceSpan& span = batch.host_spans[0];
    if (options_.audit) audit_window(layer, span, p);
    Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
    if (layer.ratio == 4 && !shadow.queries.empty()) {
      const std::int64_t entries = (span.start_position + span.num_tokens) / 4;
      const PagedView& rows = p.cache.compressed;
      const std::vector<float> keys = read_entries(inner(), p.cache.index_keys, span.table, 0, entries);
      const std::vector<float> values = read_entries(inner(), rows, span.table, 0, entries);
      const std::vector<float> raw = read_raw_rows(inner(), *layer.config, span, p);
      for (const auto& [token, query] : shadow.queries) measure(layer, span, token, p, keys, values, raw);
      shadow.queries.clear();
    }
  }
  inner().attention(layer, knobs, batch, p);
}

void Probe::measure(const LayerContext& layer, const SequenceSpan& span, std::int32_t token,
                    const AttentionParams& p, const std::vector<float>& keys, const std::vector<float>& rows,
                    const std::vector<float>& raw) {
  const ModelConfig& config = *layer.config;
  const Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
  QueryFidelity result;
  result.layer = layer.layer;
  result.position = span.start_position + token;
  result.visible = (result.position + 1) / 4;
  if (result.visible == 0) return;
  const std::int64_t heads = config.index_n_heads, dim = config.index_head_dim;
  const auto scores_of = [&](const float* q, const float* w, const std::vector<float>& from) {
    IndexKeys panel(result.visible, dim);
    for (std::int64_t j = 0; j < result.visible; ++j) panel.set(j, from.data() + j * dim);
    std::vector<float> scores(static_cast<std::size_t>(result.visible));
    index_scores(q, w, heads, panel, result.visible, ScorePrecision::kF32, scores.data());
    return scores;
  };
  const auto exact_query = std::find_if(shadow.queries.begin(), shadow.queries.end(),
                                        [&](const auto& q) { return q.first == token; });
  const std::vector<float> exact = scores_of(
      exact_query->second.data(), shadow.index.head_weights.data() + token * heads, shadow.index.keys);
  const std::vector<float> q = read_acts(inner(), index_q_, std::int64_t{token} * heads * dim, heads * dim);
  const std::vector<float> w = read_floats(inner(), index_weights_, std::int64_t{token} * heads, heads);
  const std::vector<float> actual = scores_of(q.data(), w.data(), keys);

  const std::vector<bool> kept = kept_entries(inner(), p, token, result.visible);
  result.selected = std::count(kept.begin(), kept.end(), true);
  // Overlap with, and margin at, the size that index_topk asks for.
  const std::int64_t wanted =
      wanted_topk_ == 0 ? result.visible : std::min<std::int64_t>(wanted_topk_, result.visible);
  const auto best = [&](const std::vector<float>& scores) {
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(wanted));
    select_topk(scores, static_cast<std::int32_t>(wanted), chosen.data());
    return chosen;
  };
  const std::vector<std::int32_t> exact_set = best(exact);
  std::int64_t common = 0;
  for (const std::int32_t j : exact_set) common += kept[static_cast<std::size_t>(j)] ? 1 : 0;
  result.overlap = static_cast<double>(common) / static_cast<double>(wanted);
  if (wanted < result.visible) {
    std::vector<float> sorted = exact;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const double spread = deviation(exact);
    result.margin =
        spread > 0
            ? (sorted[static_cast<std::size_t>(wanted - 1)] - sorted[static_cast<std::size_t>(wanted)]) /
                  spread
            : 0;
  }
  if (options_.audit && p.selected != nullptr) {
    note(Part::kTopkSize, layer.layer, result.position,
         1 - static_cast<double>(std::min(result.selected, wanted)) / static_cast<double>(wanted), 0);
    // Judged by the very keys and queries that the selection had; entries whose scores tie with the last may
    // swap.
    const std::vector<std::int32_t> actual_set = best(actual);
    float cut = std::numeric_limits<float>::infinity();
    for (const std::int32_t j : actual_set) cut = std::min(cut, actual[static_cast<std::size_t>(j)]);
    const float slack = static_cast<float>(1e-3 * deviation(actual)) + 1e-3f * std::fabs(cut);
    std::int64_t worse = 0;
    for (std::size_t j = 0; j < kept.size(); ++j) worse += kept[j] && actual[j] < cut - slack ? 1 : 0;
    note(Part::kTopkCandidates, layer.layer, result.position,
         static_cast<double>(worse) / static_cast<double>(std::max<std::int64_t>(1, result.selected)), 0.02);
  }
  for (const TokenRange& fact : facts_) {
    bool selected = false;
    // The entry of a token is its block's; the next entry pools the block as its predecessor too
    // (specification 2.5).
    for (std::int64_t j = fact.begin / 4; j <= std::min((fact.end - 1) / 4 + 1, result.visible - 1); ++j) {
      const auto lower = [](std::int64_t& rank, std::int64_t other) {
        rank = rank < 0 ? other : std::min(rank, other);
      };
      lower(result.fact_rank, rank_of(actual, j));
      lower(result.fact_exact_rank, rank_of(exact, j));
      selected |= kept[static_cast<std::size_t>(j)];
    }
    result.fact_selected &= selected;
  }

  const AttentionWeights& weights = weights_->layers[static_cast<std::size_t>(layer.layer)].attn;
  const AttentionShare share = attention_share(
      inner(), config, span, token, p, [&](std::int64_t j) { return rows.data() + j * config.head_dim; }, raw,
      weights.attn_sink, /*first_head=*/0, 1);
  result.entry_mass = share.kept_of_entries(kept);
  result.total_mass = share.kept_of_all(kept);
  fidelity_.push_back(result);
}

}  // namespace pivot::recall
