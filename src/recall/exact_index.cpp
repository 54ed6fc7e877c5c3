#include "recall/exact_index.h"

#include "ops/cpu/reference/indexer.h"
#include "ops/rope.h"
#include "recall/device_rows.h"
#include "recall/probe_shadow.h"

namespace pivot::recall {

struct ExactIndex::Layer {
  IndexShadow index;
  std::vector<float> queries;  // of the running step: [T][Hi][Di]
};

ExactIndex::ExactIndex(std::shared_ptr<Backend> inner_backend, std::shared_ptr<const ModelWeights> weights,
                       int num_threads)
    : ForwardingBackend(std::move(inner_backend)),
      weights_(std::move(weights)),
      pool_(num_threads),
      frequencies_(rope_frequencies(weights_->config.rope_compress, weights_->config.qk_rope_head_dim)) {
  for (std::int64_t l = 0; l < weights_->config.num_hidden_layers; ++l)
    layers_.push_back(std::make_unique<Layer>());
}

ExactIndex::~ExactIndex() = default;

void ExactIndex::latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                        const LatentParams& p) {
  inner().latent(layer, knobs, batch, p);
  if (layer.ratio != 4 || batch.num_spans != 1) return;
  const std::int64_t hidden = layer.config->hidden_size;
  const std::vector<float> x = read_acts(inner(), p.x, 0, std::int64_t{batch.num_tokens} * hidden);
  const auto at = static_cast<std::size_t>(layer.layer);
  layers_[at]->index.advance(*weights_->layers[at].attn.indexer, frequencies_, *layer.config,
                             batch.host_spans[0], reference::plain_input(x.data(), batch.num_tokens, hidden),
                             pool_);
}

void ExactIndex::query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                       const QueryParams& p) {
  inner().query(layer, knobs, batch, p);
  if (layer.ratio != 4 || batch.num_spans != 1) return;
  const ModelConfig& config = *layer.config;
  const SequenceSpan& span = batch.host_spans[0];
  const auto at = static_cast<std::size_t>(layer.layer);
  const std::vector<float> qr =
      read_acts(inner(), p.qr, 0, std::int64_t{batch.num_tokens} * config.q_lora_rank);
  std::vector<float>& queries = layers_[at]->queries;
  queries = reference::linear(weights_->layers[at].attn.indexer->wq_b,
                              reference::plain_input(qr.data(), batch.num_tokens, config.q_lora_rank), pool_);
  const std::int64_t width = config.index_n_heads * config.index_head_dim;
  for (std::int32_t t = 0; t < batch.num_tokens; ++t)
    finish_index_query(config, frequencies_, span.start_position + t, reference::Rounding(Activations::kF32),
                       queries.data() + t * width);
}

void ExactIndex::index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                              const IndexSelectParams& p) {
  if (batch.num_spans != 1) return inner().index_select(layer, knobs, batch, p);
  const SequenceSpan& span = batch.host_spans[0];
  const Layer& shadow = *layers_[static_cast<std::size_t>(layer.layer)];
  const std::int64_t heads = layer.config->index_n_heads, dim = layer.config->index_head_dim;
  const std::int64_t entries = (std::int64_t{span.start_position} + span.num_tokens) / 4;
  reference::IndexKeys keys(entries, dim);
  for (std::int64_t j = 0; j < entries; ++j) keys.set(j, shadow.index.keys.data() + j * dim);
  std::vector<std::int32_t> selected(static_cast<std::size_t>(batch.num_tokens) *
                                     static_cast<std::size_t>(p.topk));
  std::vector<std::int32_t> count(static_cast<std::size_t>(batch.num_tokens));
  pool_.for_ranges(batch.num_tokens, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> scores(static_cast<std::size_t>(entries));
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t seen = (span.start_position + t + 1) / 4;
      reference::index_scores(shadow.queries.data() + t * heads * dim,
                              shadow.index.head_weights.data() + t * heads, heads, keys, seen,
                              ScorePrecision::kF32, scores.data());
      count[static_cast<std::size_t>(t)] =
          reference::select_topk(std::span<const float>(scores).first(static_cast<std::size_t>(seen)), p.topk,
                                 selected.data() + t * p.topk);
    }
  });
  inner().upload(p.selected, selected.data(), static_cast<std::int64_t>(selected.size()) * 4);
  inner().upload(p.count, count.data(), static_cast<std::int64_t>(count.size()) * 4);
}

}  // namespace pivot::recall
