// The part-by-part comparison of a back-end with the oracle, on the back-end's own activations.
//
// Limits are relative L2 differences of whole rows. Two right implementations differ by summation order,
// which moves single values by one step of their format: below 0.03 for FP8 rows and below 0.15 for FP4 keys.
// Every fault of fault.h moves them by 0.3 and more.
#include <algorithm>
#include <cmath>

#include "cache/sequence_state.h"
#include "numeric/quantize.h"
#include "ops/cpu/reference/cache_rows.h"
#include "ops/cpu/reference/compressor.h"
#include "ops/cpu/reference/norm.h"
#include "ops/cpu/reference/rope.h"
#include "recall/device_rows.h"
#include "recall/probe_shadow.h"

namespace pivot::recall {
namespace {

using namespace reference;

constexpr double kStateLimit = 0.02;
constexpr double kRowLimit = 0.1;
constexpr double kKeyLimit = 0.25;
// Entries of a prefill step to compare: enough to see a fault, few enough to stay cheap.
constexpr std::int64_t kAuditedEntries = 24;
constexpr std::int64_t kAuditedTokens = 8;

// Every group of `a` is, up to one factor, the group of `b`.
double difference_up_to_scales(std::span<const float> a, std::span<const float> b, std::size_t group) {
  std::vector<float> fitted(a.begin(), a.end());
  for (std::size_t first = 0; first < a.size(); first += group) {
    double ab = 0, aa = 0;
    for (std::size_t i = first; i < std::min(a.size(), first + group); ++i)
      ab += static_cast<double>(a[i]) * b[i], aa += static_cast<double>(a[i]) * a[i];
    const double factor = aa > 0 ? ab / aa : 0;
    for (std::size_t i = first; i < std::min(a.size(), first + group); ++i)
      fitted[i] = static_cast<float>(a[i] * factor);
  }
  return relative_difference(fitted, b);
}

}  // namespace

double relative_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / std::max(norm, 1e-30));
}

void round_key(float* row, std::int64_t width, IndexPrecision precision) {
  reference::round_index(row, static_cast<std::int32_t>(width), precision);
}

void CompressorHistory::advance(const CompressorWeights& weights, const std::vector<float>&,
                                const ModelConfig&, const SequenceSpan& span, const LinearInput& x,
                                ThreadPool& pool) {
  width = static_cast<std::int32_t>(compressor_series(weights.ratio) * weights.width);
  rows.resize(static_cast<std::size_t>((span.start_position + span.num_tokens) * std::int64_t{2} * width));
  const std::vector<float> k = linear(weights.wkv, x, pool);
  const std::vector<float> score = linear(weights.wgate, x, pool);
  const CompressorStateView view{rows.data(), 0, span.start_position + span.num_tokens, width};
  for (std::int32_t i = 0; i < span.num_tokens; ++i)
    compressor_store(weights, view, 0, span.start_position + i, k.data() + std::int64_t{i} * width,
                     score.data() + std::int64_t{i} * width);
}

std::vector<float> CompressorHistory::entry(const CompressorWeights& weights,
                                            const std::vector<float>& frequencies, const ModelConfig& config,
                                            std::int64_t j, Rounding round) const {
  // compressor_pool only reads; the view's pointer is not const because rings are written through it
  // elsewhere.
  auto* base = const_cast<float*>(rows.data());
  const auto count = static_cast<std::int32_t>(rows.size() / (2 * static_cast<std::size_t>(width)));
  // A ring is at least 8 rows by contract; positions stay below `count`.
  const CompressorStateView view{base, 0, std::max(count, 128), width};
  std::vector<float> row(static_cast<std::size_t>(weights.width));
  compressor_pool(weights, view, 0, j, row.data());
  compressor_finish(weights, frequencies.data(), config.qk_rope_head_dim, j,
                    static_cast<float>(config.rms_norm_eps), round, row.data());
  return row;
}

void IndexShadow::advance(const IndexerWeights& weights, const std::vector<float>& frequencies,
                          const ModelConfig& config, const SequenceSpan& span, const LinearInput& x,
                          ThreadPool& pool) {
  const std::int64_t first = span.start_position / 4, last = (span.start_position + span.num_tokens) / 4;
  history.advance(weights.compressor, frequencies, config, span, x, pool);
  keys.resize(static_cast<std::size_t>(last * config.index_head_dim));
  for (std::int64_t j = first; j < last; ++j) {
    std::vector<float> key =
        history.entry(weights.compressor, frequencies, config, j, Rounding(Activations::kF32));
    hadamard(key);
    std::copy(key.begin(), key.end(), keys.begin() + j * config.index_head_dim);
  }
  head_weights = linear(weights.weights_proj, x, pool);
  const double scale = 1 / std::sqrt(static_cast<double>(config.index_head_dim * config.index_n_heads));
  for (float& value : head_weights) value = static_cast<float>(value * scale);
}

void finish_index_query(const ModelConfig& config, const std::vector<float>& frequencies,
                        std::int32_t position, Rounding round, float* query) {
  const std::int64_t rope = config.qk_rope_head_dim, dim = config.index_head_dim;
  const RopeAngles angles(frequencies.data(), rope / 2, position);
  for (std::int64_t h = 0; h < config.index_n_heads; ++h) {
    float* head = query + h * dim;
    rotate(head + dim - rope, angles, false, round);
    hadamard({head, static_cast<std::size_t>(dim)});
    round.apply(head, dim);
  }
}

void Probe::audit_states(const LayerContext& layer, const SequenceSpan& span, const LatentParams& p) {
  Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
  // What a restore lost stays in the rings for a while: until the sequence starts anew, differences are the
  // restore's.
  if (span.start_position == 0)
    shadow.jumped = false;
  else if (span.start_position != shadow.end)
    shadow.jumped = true;
  if (layer.ratio == 0 || span.start_position == 0) return;
  const auto compare = [&](const CompressorHistory& history, const CompressorStateView& state) {
    for (std::int64_t at = first_state_row(span.start_position, layer.ratio); at < span.start_position;
         ++at) {
      if ((at + 1) * 2 * history.width > static_cast<std::int64_t>(history.rows.size())) return;
      // Rows of the block before are read by their A half alone (specification 2.5): the first half of k and
      // of s.
      const std::int64_t count =
          history.width / (layer.ratio == 4 && at / 4 < span.start_position / 4 ? 2 : 1);
      const float* wanted = history.rows.data() + at * 2 * history.width;
      const std::int64_t row = span.slot * state.slot_floats + at % state.rows * 2 * state.width;
      const std::vector<float> k = read_floats(inner(), state.base, row, count);
      const std::vector<float> s = read_floats(inner(), state.base, row + state.width, count);
      const double difference = std::max(relative_difference(k, {wanted, k.size()}),
                                         relative_difference(s, {wanted + history.width, s.size()}));
      note(shadow.jumped ? Part::kCompressorRestore : Part::kCompressorCarry, layer.layer, at, difference,
           kStateLimit);
    }
  };
  compare(shadow.main, p.cache.compressor);
  if (layer.ratio == 4) compare(shadow.index.history, p.cache.index_compressor);
}

void Probe::audit_rows(const LayerContext& layer, const Knobs& knobs, const SequenceSpan& span,
                       const LatentParams& p, const std::vector<float>& x) {
  const ModelConfig& config = *layer.config;
  Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
  const AttentionWeights& weights = weights_->layers[static_cast<std::size_t>(layer.layer)].attn;
  const std::vector<float>& frequencies = layer.ratio == 0 ? rope_main_ : rope_compress_;
  const Rounding round(knobs.activations);
  const auto width = static_cast<std::int32_t>(config.head_dim);
  const auto rope = static_cast<std::int32_t>(config.qk_rope_head_dim);
  const auto nope = static_cast<std::size_t>(width - rope);
  const auto halves = [&](std::span<const float> found, std::span<const float> wanted) {
    return std::pair(relative_difference(found.first(nope), wanted.first(nope)),
                     relative_difference(found.subspan(nope), wanted.subspan(nope)));
  };

  // Raw rows.
  const std::vector<float> raw = read_acts(inner(), p.kv, 0, std::int64_t{span.num_tokens} * width);
  shadow.raw.resize(static_cast<std::size_t>((span.start_position + span.num_tokens) * std::int64_t{width}));
  std::copy(raw.begin(), raw.end(), shadow.raw.begin() + std::int64_t{span.start_position} * width);
  for (std::int64_t i = std::max<std::int64_t>(0, span.num_tokens - kAuditedTokens); i < span.num_tokens;
       ++i) {
    const std::int64_t position = span.start_position + i;
    std::vector<float> row = linear(
        weights.wkv,
        linear_input(weights.wkv, knobs.dense_act, x.data() + i * config.hidden_size, 1, config.hidden_size),
        round, pool_);
    rms_norm(row.data(), weights.kv_norm.data(), width, static_cast<float>(config.rms_norm_eps), round,
             row.data());
    rotate(row.data() + nope, RopeAngles(frequencies.data(), rope / 2, static_cast<std::int32_t>(position)),
           false, round);
    round_kv(row.data(), width, rope, knobs.kv, nullptr);
    const auto [values, rotated] = halves({raw.data() + i * width, static_cast<std::size_t>(width)}, row);
    note(Part::kRawRows, layer.layer, position, values, kRowLimit);
    note(Part::kRope, layer.layer, position, rotated, kRowLimit);
  }

  // Compressed rows and index keys that this step finished.
  if (layer.ratio == 0) return;
  const std::int64_t first = span.start_position / layer.ratio,
                     last = (span.start_position + span.num_tokens) / layer.ratio;
  const std::int64_t stride = std::max<std::int64_t>(1, (last - first) / kAuditedEntries);
  for (std::int64_t j = first; j < last; j += stride) {
    std::vector<float> row = shadow.main.entry(*weights.compressor, frequencies, config, j, round);
    round_kv(row.data(), width, rope, knobs.kv, nullptr);
    const std::vector<float> stored = read_entries(inner(), p.cache.compressed, span.table, j, j + 1);
    const auto [values, rotated] = halves(stored, row);
    note(Part::kRope, layer.layer, j, rotated, kRowLimit);
    const bool scales =
        values > kRowLimit &&
        difference_up_to_scales(std::span(stored).first(nope), std::span(row).first(nope), 64) < kRowLimit;
    note(scales ? Part::kEntryScales : Part::kEntryRows, layer.layer, j, values, kRowLimit);
    if (layer.ratio != 4) continue;
    std::vector<float> key =
        shadow.index.history.entry(weights.indexer->compressor, frequencies, config, j, round);
    hadamard(key);
    round.apply(key.data(), static_cast<std::int64_t>(key.size()));
    audit_key(knobs, layer.layer, j, std::move(key),
              read_entries(inner(), p.cache.index_keys, span.table, j, j + 1));
  }
}

// A key that differs is explained, if it can be, by the one thing that makes it agree.
void Probe::audit_key(const Knobs& knobs, std::int32_t layer, std::int64_t entry, std::vector<float> exact,
                      const std::vector<float>& stored) {
  const auto width = static_cast<std::int64_t>(exact.size());
  std::vector<float> rounded = exact;
  round_key(rounded.data(), width, knobs.index_keys);
  const double difference = relative_difference(stored, rounded);
  if (difference <= kKeyLimit) return note(Part::kKeyValues, layer, entry, difference, kKeyLimit);
  std::vector<float> turned = stored;
  hadamard(turned);
  if (relative_difference(turned, exact) < 2 * kKeyLimit)
    return note(Part::kKeyRotation, layer, entry, difference, kKeyLimit);
  const std::size_t group = knobs.index_keys == IndexPrecision::kFp4 ? 32 : stored.size();
  if (difference_up_to_scales(stored, rounded, group) < kKeyLimit)
    return note(Part::kKeyScales, layer, entry, difference, kKeyLimit);
  // The same magnitudes in other places: dims of a byte exchanged, or bytes moved.
  const auto profile = [](std::span<const float> values) {
    std::vector<float> sorted(values.begin(), values.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  };
  // Moved bytes meet other scales, so scales are taken out of both first.
  const auto unscaled = [&](std::span<const float> values) {
    std::vector<float> codes(values.begin(), values.end());
    for (std::size_t at = 0; at < codes.size(); at += group) {
      float most = 0;
      for (std::size_t i = at; i < std::min(codes.size(), at + group); ++i)
        most = std::max(most, std::fabs(codes[i]));
      for (std::size_t i = at; most > 0 && i < std::min(codes.size(), at + group); ++i) codes[i] /= most;
    }
    return codes;
  };
  const bool moved = relative_difference(profile(unscaled(stored)), profile(unscaled(rounded))) < kKeyLimit;
  note(moved ? Part::kKeyLayout : Part::kKeyValues, layer, entry, difference, kKeyLimit);
}

void Probe::audit_window(const LayerContext& layer, const SequenceSpan& span, const AttentionParams& p) {
  const Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
  const std::int64_t width = layer.config->head_dim;
  const std::int64_t first = first_window_row(span.start_position, layer.config->sliding_window);
  if (first >= span.start_position ||
      static_cast<std::int64_t>(shadow.raw.size()) < span.start_position * width)
    return;
  const std::vector<float> ring = read_ring(inner(), p.cache.window, span.slot, first, span.start_position);
  const std::span<const float> wanted(shadow.raw.data() + first * width, ring.size());
  note(shadow.jumped ? Part::kWindowRestore : Part::kWindowCarry, layer.layer, first,
       relative_difference(ring, wanted), kStateLimit);
}

void Probe::moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const MoeParams& p) {
  inner().moe(layer, knobs, batch, p);
  if (!options_.audit || batch.num_spans != 1) return;
  const ModelConfig& config = *layer.config;
  const std::int32_t token = batch.num_tokens - 1;
  const std::vector<float> x =
      read_acts(inner(), p.x, std::int64_t{token} * config.hidden_size, config.hidden_size);
  const std::vector<std::int32_t> ids = read_ints(
      inner(), p.expert_ids, std::int64_t{token} * config.num_experts_per_tok, config.num_experts_per_tok);
  const std::vector<float> weights =
      read_floats(inner(), p.expert_weights, std::int64_t{token} * config.num_experts_per_tok,
                  config.num_experts_per_tok);
  StepBatch one;
  one.num_tokens = 1;
  std::vector<float> wanted(x.size());
  oracle_->moe(layer, knobs, one,
               {.weights = &weights_->layers[static_cast<std::size_t>(layer.layer)].ffn,
                .x = x.data(),
                .expert_ids = ids.data(),
                .expert_weights = weights.data(),
                .out = wanted.data()});
  const std::vector<float> found =
      read_acts(inner(), p.out, std::int64_t{token} * config.hidden_size, config.hidden_size);
  note(Part::kExperts, layer.layer, batch.host_spans[0].start_position + token,
       relative_difference(found, wanted), kRowLimit);
}

}  // namespace pivot::recall
