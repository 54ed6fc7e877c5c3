// Single operators of a decode step. Each is a chain over the layers that have it, so that weights are cold,
// in one run_step, so that a back-end which replays steps replays the chain.
#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

#include "bench_model.h"
#include "model/workspace.h"
#include "ops/rope.h"

namespace pivot::cli {
namespace {

double bytes_of(const Matrix& m) { return static_cast<double>(m.code_bytes() + m.scale_bytes()); }

struct Chain {
  std::string name;
  int ratio;  // of the layers it runs over; -1: all
  std::function<void(const LayerContext&, const LayerWeights&, const LayerCacheView&)> call;
  std::function<double(const LayerWeights&)> bytes;
};

}  // namespace

Result<std::vector<KernelResult>> bench_kernels(const std::shared_ptr<Backend>& backend,
                                                const std::shared_ptr<const ModelWeights>& weights,
                                                const Knobs& knobs, const DecodeCase& wanted) {
  PIVOT_TRY(const std::unique_ptr<BenchModel> bench,
            BenchModel::create(backend, weights, knobs, {wanted.context, wanted.batch, 8, wanted.batch}));
  // Steps leave every activation buffer of the model's own workspace filled; these chains use another one.
  const ModelConfig& c = bench->model().config();
  const std::int32_t topk = bench->model().index_topk(), tokens = wanted.batch;
  PIVOT_TRY(const std::unique_ptr<Workspace> w,
            Workspace::create(backend, c, {tokens, tokens, tokens, topk}));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens)), positions(ids.size()), rows(ids.size());
  std::vector<SequenceSpan> spans;
  std::mt19937 random(7);
  const auto position = static_cast<std::int32_t>(bench->position());
  for (std::int32_t i = 0; i < tokens; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ids[at] = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(c.vocab_size));
    positions[at] = position;
    rows[at] = i;
    spans.push_back({i, 1, position, bench->slot(i), i});
  }
  const auto upload = [&](void* device, const auto& host) {
    backend->upload(device, host.data(), static_cast<std::int64_t>(host.size() * sizeof(host[0])));
  };
  upload(w->token_ids, ids);
  upload(w->positions, positions);
  upload(w->span_of, rows);
  upload(w->spans, spans);
  upload(w->logit_rows, rows);
  const StepBatch batch{tokens, w->token_ids, w->positions, w->span_of, tokens, w->spans, spans.data()};
  const std::vector<float> main = rope_frequencies(c.rope_main, c.qk_rope_head_dim),
                           compress = rope_frequencies(c.rope_compress, c.qk_rope_head_dim);

  const double kv_row = bench->layout().kv.row_bytes(), key_row = bench->layout().index_key.row_bytes();
  const double window = static_cast<double>(std::min<std::int64_t>(wanted.context, c.sliding_window));
  const double entries4 = static_cast<double>(wanted.context / 4);
  const bool choose = topk > 0;
  // A balanced set of distinct experts: what random ids give.
  const double all = static_cast<double>(c.n_routed_experts), k = static_cast<double>(c.num_experts_per_tok);
  double missed = 1.0;
  for (std::int32_t i = 0; i < tokens; ++i) missed *= 1.0 - k / all;
  const double experts = all * (1.0 - missed);

  const auto latent = [&](const LayerContext& l, const LayerWeights& lw, const LayerCacheView& cache) {
    backend->latent(l, knobs, batch,
                    {.weights = &lw.attn,
                     .x = w->x,
                     .qr = w->qr,
                     .kv = w->kv,
                     .kv_scales = cache.window.layout.format == RowFormat::kKvPacked ? w->kv_scales : nullptr,
                     .index_weights = l.ratio == 4 ? w->index_weights : nullptr,
                     .cache = cache});
  };
  const auto latent_bytes = [](const LayerWeights& lw) {
    double bytes = bytes_of(lw.attn.wq_a) + bytes_of(lw.attn.wkv);
    if (lw.attn.compressor) bytes += bytes_of(lw.attn.compressor->wkv) + bytes_of(lw.attn.compressor->wgate);
    if (lw.attn.indexer)
      bytes += bytes_of(lw.attn.indexer->weights_proj) + bytes_of(lw.attn.indexer->compressor.wkv) +
               bytes_of(lw.attn.indexer->compressor.wgate);
    return bytes;
  };
  const auto attention = [&](const LayerContext& l, const LayerWeights& lw, const LayerCacheView& cache) {
    const bool selects = l.ratio == 4 && choose;
    backend->attention(
        l, knobs, batch,
        {.weights = &lw.attn,
         .q = w->q,
         .kv = w->kv,
         .kv_scales = cache.window.layout.format == RowFormat::kKvPacked ? w->kv_scales : nullptr,
         .cache = cache,
         .selected = selects ? w->selected : nullptr,
         .selected_count = selects ? w->selected_count : nullptr,
         .topk = selects ? topk : 0,
         .o = w->o});
  };
  const std::vector<Chain> chains = {
      {"hc_seam", -1,
       [&](const LayerContext& l, const LayerWeights& lw, const LayerCacheView&) {
         backend->hc_seam(l, knobs, batch,
                          {.hc = &lw.attn_hc,
                           .norm = lw.attn_norm,
                           .h = w->h,
                           .sublayer_out = w->out,
                           .post = w->post,
                           .comb = w->comb,
                           .x = w->x});
       },
       [](const LayerWeights& lw) { return 4.0 * static_cast<double>(lw.attn_hc.fn.size()); }},
      {"latent (ratio 4)", 4, latent, latent_bytes},
      {"latent (ratio 128)", 128, latent, latent_bytes},
      {"query (ratio 4)", 4,
       [&](const LayerContext& l, const LayerWeights& lw, const LayerCacheView&) {
         backend->query(l, knobs, batch,
                        {.weights = &lw.attn, .qr = w->qr, .q = w->q, .index_q = w->index_q});
       },
       [](const LayerWeights& lw) { return bytes_of(lw.attn.wq_b) + bytes_of(lw.attn.indexer->wq_b); }},
      {"index_select", 4,
       [&](const LayerContext& l, const LayerWeights&, const LayerCacheView& cache) {
         if (choose)
           backend->index_select(l, knobs, batch,
                                 {.index_q = w->index_q,
                                  .index_weights = w->index_weights,
                                  .index_keys = cache.index_keys,
                                  .topk = topk,
                                  .selected = w->selected,
                                  .count = w->selected_count});
       },
       [&](const LayerWeights&) { return choose ? tokens * entries4 * key_row : 0.0; }},
      {"attention (ratio 4)", 4, attention,
       [&](const LayerWeights&) {
         const double chosen = choose ? std::min(entries4, static_cast<double>(topk)) : entries4;
         return tokens * (window + chosen) * kv_row;
       }},
      {"attention (ratio 128)", 128, attention,
       [&](const LayerWeights&) {
         return tokens * (window + static_cast<double>(wanted.context / 128)) * kv_row;
       }},
      {"attention_out", -1,
       [&](const LayerContext& l, const LayerWeights& lw, const LayerCacheView&) {
         backend->attention_out(l, knobs, batch, {.weights = &lw.attn, .o = w->o, .out = w->out});
       },
       [](const LayerWeights& lw) { return bytes_of(lw.attn.wo_a) + bytes_of(lw.attn.wo_b); }},
      {"route", -1,
       [&](const LayerContext& l, const LayerWeights& lw, const LayerCacheView&) {
         backend->route(l, knobs, batch,
                        {.weights = &lw.ffn,
                         .x = w->x,
                         .expert_ids = w->expert_ids,
                         .expert_weights = w->expert_weights,
                         .margin = nullptr});
       },
       [](const LayerWeights& lw) { return bytes_of(lw.ffn.gate); }},
      {"moe", -1,
       [&](const LayerContext& l, const LayerWeights& lw, const LayerCacheView&) {
         backend->moe(l, knobs, batch,
                      {.weights = &lw.ffn,
                       .x = w->x,
                       .expert_ids = w->expert_ids,
                       .expert_weights = w->expert_weights,
                       .out = w->out});
       },
       [&](const LayerWeights& lw) {
         const ExpertWeights& e = lw.ffn.shared;
         return experts * expert_bytes(*weights) + bytes_of(e.w1) + bytes_of(e.w3) + bytes_of(e.w2);
       }},
      {"logits", -2,
       [&](const LayerContext&, const LayerWeights&, const LayerCacheView&) {
         backend->logits(knobs,
                         {.head = weights->head, .x = w->final_x, .num_rows = tokens, .logits = w->logits});
       },
       [&](const LayerWeights&) { return bytes_of(weights->head); }},
  };

  backend->embed(batch,
                 {.embed = weights->embed, .num_streams = static_cast<std::int32_t>(c.hc_mult), .h = w->h});
  std::vector<KernelResult> results;
  for (std::size_t i = 0; i < chains.size(); ++i) {
    const Chain& chain = chains[i];
    KernelResult result{chain.name, 0, 0.0, 0.0};
    std::vector<LayerContext> contexts;
    for (std::int32_t l = 0; l < c.num_hidden_layers; ++l) {
      if (chain.ratio >= 0 ? c.ratio(l) != chain.ratio : chain.ratio == -2 && l > 0) continue;
      contexts.push_back({&c, l, c.ratio(l), c.ratio(l) == 0 ? main.data() : compress.data()});
      result.bytes += chain.bytes(weights->layers[static_cast<std::size_t>(l)]);
    }
    result.calls = static_cast<std::int32_t>(contexts.size());
    if (result.calls == 0) continue;
    const auto record = [&] {
      for (const LayerContext& context : contexts) {
        const auto l = static_cast<std::size_t>(context.layer);
        chain.call(context, bench->model().weights().layers[l], bench->views()[l]);
      }
    };
    std::vector<double> seconds;
    for (int run = 0; run < 12; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      backend->run_step({tokens, 0, 0xbe0c4000u + i}, record);
      PIVOT_TRY_VOID(backend->synchronize());
      if (run >= 3)
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(seconds.begin(), seconds.end());
    result.seconds = seconds[seconds.size() / 2] / result.calls;
    result.bytes /= result.calls;
    results.push_back(result);
  }
  return results;
}

}  // namespace pivot::cli
