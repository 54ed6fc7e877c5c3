#include "recall/step_probe.h"

#include <algorithm>

#include "base/check.h"
#include "recall/attention_share.h"
#include "recall/device_rows.h"

namespace pivot::recall {
namespace {

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// Share of the `count` entries with the most attention that were kept.
double overlap_of(const AttentionShare& share, const std::vector<bool>& kept, std::int64_t count) {
  std::vector<std::int64_t> order(share.entry.size());
  for (std::size_t j = 0; j < order.size(); ++j) order[j] = static_cast<std::int64_t>(j);
  const auto at = [&](std::int64_t j) { return share.entry[static_cast<std::size_t>(j)]; };
  std::nth_element(
      order.begin(), order.begin() + count - 1, order.end(),
      [&](std::int64_t a, std::int64_t b) { return at(a) > at(b) || (at(a) == at(b) && a < b); });
  const auto common = std::count_if(order.begin(), order.begin() + count,
                                    [&](std::int64_t j) { return kept[static_cast<std::size_t>(j)]; });
  return static_cast<double>(common) / static_cast<double>(count);
}

}  // namespace

double pause_seconds(double busy_seconds, double max_share) { return busy_seconds * (1 / max_share - 1); }

StepProbe::StepProbe(std::shared_ptr<Backend> inner_backend, std::shared_ptr<const ModelWeights> weights,
                     StepProbeOptions options)
    : ForwardingBackend(std::move(inner_backend)),
      weights_(std::move(weights)),
      options_(std::move(options)) {
  PIVOT_CHECK(options_.every_steps >= 1 && options_.max_share > 0 && options_.max_share <= 1 &&
              options_.heads >= 1);
  const ModelConfig& config = weights_->config;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l)
    if (config.compress_ratios[static_cast<std::size_t>(l)] == 4)
      indexed_layers_.push_back(static_cast<std::int32_t>(l));
}

void StepProbe::run_step(const StepKey& key, const std::function<void()>& record) {
  const bool due = ++steps_ % static_cast<std::uint64_t>(options_.every_steps) == 0;
  armed_ = -1;
  if (!due || indexed_layers_.empty() || Clock::now() < not_before_) return inner().run_step(key, record);
  armed_ = indexed_layers_[turn_++ % indexed_layers_.size()];
  const Clock::time_point start = Clock::now();
  record();
  armed_ = -1;
  // What would have been one launch was many: then the whole step counts as the probe's.
  if (inner().replays_steps()) rest_after(Clock::now() - start);
}

void StepProbe::rest_after(Clock::duration busy) {
  busy_seconds_ += seconds(busy);
  not_before_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                   pause_seconds(seconds(busy), options_.max_share)));
}

void StepProbe::attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                          const AttentionParams& p) {
  if (layer.layer == armed_ && batch.num_spans > 0) {
    const Clock::time_point start = Clock::now();
    measure(layer,
            batch.host_spans[turn_ / indexed_layers_.size() % static_cast<std::size_t>(batch.num_spans)], p);
    if (!inner().replays_steps()) rest_after(Clock::now() - start);
    armed_ = -1;
  }
  inner().attention(layer, knobs, batch, p);
}

void StepProbe::measure(const LayerContext& layer, const SequenceSpan& span, const AttentionParams& p) {
  const std::int32_t token = span.num_tokens - 1;
  StepFidelity result;
  result.layer = layer.layer;
  result.position = span.start_position + token;
  result.visible = (result.position + 1) / 4;
  if (result.visible == 0) return;
  const std::vector<bool> kept =
      kept_entries(inner(), p, std::int64_t{span.first_token} + token, result.visible);
  result.selected = std::count(kept.begin(), kept.end(), true);
  if (result.selected > 0 && result.selected < result.visible) {
    const ModelConfig& config = *layer.config;
    EntryReader rows(inner(), p.cache.compressed, span.table, result.visible);
    const std::vector<float> raw = read_raw_rows(inner(), config, span, p);
    const std::int64_t step = std::max<std::int64_t>(1, config.num_attention_heads / options_.heads);
    const AttentionShare share = attention_share(
        inner(), config, span, token, p, [&](std::int64_t j) { return rows.row(j); }, raw,
        weights_->layers[static_cast<std::size_t>(layer.layer)].attn.attn_sink,
        static_cast<std::int64_t>(turn_ % static_cast<std::uint64_t>(step)), step);
    result.overlap = overlap_of(share, kept, result.selected);
    result.entry_mass = share.kept_of_entries(kept);
  }
  ++measured_;
  if (options_.on_measured) options_.on_measured(result);
}

}  // namespace pivot::recall
