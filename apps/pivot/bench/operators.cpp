#include "bench/operators.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/check.h"
#include "numeric/formats.h"
#include "ops/rope.h"

namespace pivot::cli {
namespace {

// Bytes of experts that the calls of a chain read before they come round: far beyond any cache.
constexpr double kExpertSet = 1 << 30;

const LayerWeights& layer_of(const ModelWeights& weights, std::size_t layer) { return weights.layers[layer]; }

}  // namespace

OperatorBench::OperatorBench(std::shared_ptr<Backend> backend, std::shared_ptr<const ModelWeights> weights,
                             const Knobs& knobs, const OperatorCase& wanted)
    : backend_(std::move(backend)), shapes_(std::move(weights)), knobs_(knobs), wanted_(wanted) {}

Result<std::unique_ptr<OperatorBench>> OperatorBench::create(
    const std::shared_ptr<Backend>& backend, const std::shared_ptr<const ModelWeights>& weights,
    const Knobs& knobs, const OperatorCase& wanted) {
  std::unique_ptr<OperatorBench> bench(new OperatorBench(backend, weights, knobs, wanted));
  const std::int32_t sequences = wanted.prompt ? 1 : wanted.tokens;
  const std::int64_t new_tokens = wanted.prompt ? wanted.tokens : 8;
  PIVOT_TRY(bench->bench_, BenchModel::create(backend, weights, knobs,
                                              {wanted.context, sequences, new_tokens, wanted.tokens}));
  // Steps leave every activation buffer of the model's own workspace filled; these chains use another one.
  PIVOT_TRY(bench->w_,
            Workspace::create(backend, weights->config,
                              {wanted.tokens, sequences, sequences, bench->bench_->model().index_topk()}));
  PIVOT_TRY_VOID(bench->prepare());
  return bench;
}

Result<> OperatorBench::prepare() {
  const ModelConfig& c = bench_->model().config();
  rope_main_ = rope_frequencies(c.rope_main, c.qk_rope_head_dim);
  rope_compress_ = rope_frequencies(c.rope_compress, c.qk_rope_head_dim);
  describe_step();
  fill_activations();
  define_latent();
  define_attention();
  define_rest();
  // Experts of the calls: as many sets as fill kExpertSet, each token's drawn uniformly.
  const auto chosen = static_cast<double>(c.num_experts_per_tok);
  const double call =
      std::min(static_cast<double>(c.n_routed_experts), chosen * wanted_.tokens) * expert_bytes(*shapes_);
  expert_calls_ = static_cast<std::size_t>(std::clamp(kExpertSet / call, 1.0, 64.0));
  choose_experts();
  const auto bytes = static_cast<std::int64_t>(host_ids_.size() * sizeof(std::int32_t));
  PIVOT_TRY(std::byte * memory, backend_->allocate(bytes, "the chosen experts"));
  device_ids_ = {memory, [backend = backend_](std::byte* p) { backend->release(p); }};
  backend_->upload(memory, host_ids_.data(), bytes);
  // One layer's operators in order leave every input as an operator before it would: on the grids that the
  // next one expects, and finite.
  backend_->embed(batch_, {.embed = bench_->model().weights().embed,
                           .num_streams = static_cast<std::int32_t>(c.hc_mult),
                           .h = w_->h});
  // The first seam of a step: without an output before it, it sets what later ones read.
  const LayerContext first{&c, 0, c.ratio(0), c.ratio(0) == 0 ? rope_main_.data() : rope_compress_.data()};
  const LayerWeights& layer = bench_->model().weights().layers.front();
  backend_->hc_seam(first, knobs_, batch_,
                    {.hc = &layer.attn_hc,
                     .norm = layer.attn_norm,
                     .h = w_->h,
                     .sublayer_out = nullptr,
                     .post = w_->post,
                     .comb = w_->comb,
                     .x = w_->x});
  for (const Operator& op : operators_)
    if (const std::vector<LayerContext> layers = layers_of(op); !layers.empty()) op.call(layers.front(), 0);
  return backend_->synchronize();
}

void OperatorBench::describe_step() {
  const ModelConfig& c = bench_->model().config();
  const std::int32_t tokens = wanted_.tokens;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens)), positions(ids.size()), span_of(ids.size()),
      rows;
  std::mt19937 random(7);
  const auto position = static_cast<std::int32_t>(bench_->position());
  for (std::int32_t i = 0; i < tokens; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ids[at] = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(c.vocab_size));
    positions[at] = wanted_.prompt ? position + i : position;
    span_of[at] = wanted_.prompt ? 0 : i;
    if (!wanted_.prompt) spans_.push_back({i, 1, position, bench_->slot(i), i});
    if (!wanted_.prompt || i + 1 == tokens) rows.push_back(i);
  }
  if (wanted_.prompt) spans_.push_back({0, tokens, position, bench_->slot(0), 0});
  const auto upload = [&](void* device, const auto& host) {
    backend_->upload(device, host.data(), static_cast<std::int64_t>(host.size() * sizeof(host[0])));
  };
  upload(w_->token_ids, ids);
  upload(w_->positions, positions);
  upload(w_->span_of, span_of);
  upload(w_->spans, spans_);
  upload(w_->logit_rows, rows);
  batch_ = {tokens,    w_->token_ids, w_->positions, w_->span_of, static_cast<std::int32_t>(spans_.size()),
            w_->spans, spans_.data()};
}

void OperatorBench::fill_activations() {
  const ModelConfig& c = bench_->model().config();
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto fill = [&](Act* to, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = round_bf16(normal(random));
    if (backend_->activation_bytes() == 4) return backend_->upload(to, values.data(), 4 * count);
    std::vector<std::uint16_t> narrow;
    for (const float x : values) narrow.push_back(to_bf16(x).bits);
    backend_->upload(to, narrow.data(), 2 * count);
  };
  const std::int64_t tokens = wanted_.tokens, width = c.hidden_size;
  fill(w_->x, tokens * width);
  fill(w_->out, tokens * width);
  fill(w_->o, tokens * c.num_attention_heads * c.head_dim);
  fill(w_->final_x, static_cast<std::int64_t>(spans_.size()) * width);
  const std::vector<float> weights(static_cast<std::size_t>(tokens * c.num_experts_per_tok), 0.25f);
  backend_->upload(w_->expert_weights, weights.data(), static_cast<std::int64_t>(weights.size()) * 4);
}

void OperatorBench::choose_experts() {
  const ModelConfig& c = bench_->model().config();
  std::mt19937 random(3);
  std::vector<std::int32_t> all(static_cast<std::size_t>(c.n_routed_experts));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  std::vector<std::int32_t> picked;
  for (std::size_t token = 0; token < expert_calls_ * static_cast<std::size_t>(wanted_.tokens); ++token) {
    picked.clear();
    std::sample(all.begin(), all.end(), std::back_inserter(picked), c.num_experts_per_tok, random);
    host_ids_.insert(host_ids_.end(), picked.begin(), picked.end());  // sample keeps the order: ascending
  }
}

std::vector<std::int32_t> OperatorBench::chosen(std::size_t call) const {
  const auto count = static_cast<std::ptrdiff_t>(host_ids_.size() / expert_calls_);
  const auto begin = host_ids_.begin() + static_cast<std::ptrdiff_t>(call % expert_calls_) * count;
  return {begin, begin + count};
}

void OperatorBench::define_latent() {
  const ModelConfig& c = bench_->model().config();
  const double tokens = wanted_.tokens;
  const auto weights = [this](const LayerContext& l) -> const LayerWeights& {
    return layer_of(bench_->model().weights(), static_cast<std::size_t>(l.layer));
  };
  // A layer has two seams: a pass goes through the first of every layer, then through the second.
  const auto layers = static_cast<std::size_t>(c.num_hidden_layers);
  operators_.push_back({"hc_seam", kEvery,
                        [this, weights, layers](const LayerContext& l, std::size_t call) {
                          const LayerWeights& lw = weights(l);
                          const bool first = call / layers % 2 == 0;
                          backend_->hc_seam(l, knobs_, batch_,
                                            {.hc = first ? &lw.attn_hc : &lw.ffn_hc,
                                             .norm = first ? lw.attn_norm : lw.ffn_norm,
                                             .h = w_->h,
                                             .sublayer_out = w_->out,
                                             .post = w_->post,
                                             .comb = w_->comb,
                                             .x = w_->x});
                        },
                        [this, &c, tokens](std::size_t l, std::size_t) {
                          return seam_cost(c, layer_of(*shapes_, l).attn_hc, tokens);
                        }});
  for (const int ratio : {0, 4, 128}) {
    operators_.push_back({fmt::format("latent (ratio {})", ratio), ratio,
                          [this, weights](const LayerContext& l, std::size_t) {
                            const LayerCacheView& cache = bench_->views()[static_cast<std::size_t>(l.layer)];
                            const bool packed = cache.window.layout.format == RowFormat::kKvPacked;
                            backend_->latent(l, knobs_, batch_,
                                             {.weights = &weights(l).attn,
                                              .x = w_->x,
                                              .qr = w_->qr,
                                              .kv = w_->kv,
                                              .kv_scales = packed ? w_->kv_scales : nullptr,
                                              .index_weights = l.ratio == 4 ? w_->index_weights : nullptr,
                                              .cache = cache});
                          },
                          [this, tokens](std::size_t l, std::size_t) {
                            return latent_cost(layer_of(*shapes_, l).attn, tokens);
                          }});
  }
  for (const int ratio : {0, 4, 128}) {
    operators_.push_back({fmt::format("query (ratio {})", ratio), ratio,
                          [this, weights](const LayerContext& l, std::size_t) {
                            backend_->query(l, knobs_, batch_,
                                            {.weights = &weights(l).attn,
                                             .qr = w_->qr,
                                             .q = w_->q,
                                             .index_q = l.ratio == 4 ? w_->index_q : nullptr});
                          },
                          [this, tokens](std::size_t l, std::size_t) {
                            return query_cost(layer_of(*shapes_, l).attn, tokens);
                          }});
  }
}

void OperatorBench::define_attention() {
  const ModelConfig& c = bench_->model().config();
  const std::int32_t topk = bench_->model().index_topk();
  const std::int64_t first = bench_->position(), sequences = wanted_.prompt ? 1 : wanted_.tokens;
  const std::int64_t each = wanted_.prompt ? wanted_.tokens : 1;
  if (topk > 0) {
    double entries = 0;
    for (std::int64_t i = 0; i < each; ++i) entries += static_cast<double>((first + i + 1) / 4);
    const double read = static_cast<double>((first + each) / 4);
    const Cost cost =
        index_cost(c, entries * static_cast<double>(sequences), read * static_cast<double>(sequences),
                   bench_->layout().index_key.row_bytes());
    operators_.push_back({"index_select", 4,
                          [this, topk](const LayerContext& l, std::size_t) {
                            const LayerCacheView& cache = bench_->views()[static_cast<std::size_t>(l.layer)];
                            backend_->index_select(l, knobs_, batch_,
                                                   {.index_q = w_->index_q,
                                                    .index_weights = w_->index_weights,
                                                    .index_keys = cache.index_keys,
                                                    .topk = topk,
                                                    .selected = w_->selected,
                                                    .count = w_->selected_count});
                          },
                          [cost](std::size_t, std::size_t) { return cost; }});
  }
  for (const int ratio : {0, 4, 128}) {
    const double rows = visible_rows(c, ratio, first, first + each, topk);
    // A prompt's tokens share the rows that they read, as far as anyone can tell without its selections: the
    // last token's rows and the prompt's own.
    const double read = visible_rows(c, ratio, first + each - 1, topk);
    const auto count = static_cast<double>(sequences);
    const Cost cost = attention_cost(c, rows * count, read * count, bench_->layout().kv.row_bytes());
    operators_.push_back(
        {fmt::format("attention (ratio {})", ratio), ratio,
         [this, topk](const LayerContext& l, std::size_t) {
           const LayerCacheView& cache = bench_->views()[static_cast<std::size_t>(l.layer)];
           const bool selects = l.ratio == 4 && topk > 0;
           const bool packed = cache.window.layout.format == RowFormat::kKvPacked;
           backend_->attention(
               l, knobs_, batch_,
               {.weights = &layer_of(bench_->model().weights(), static_cast<std::size_t>(l.layer)).attn,
                .q = w_->q,
                .kv = w_->kv,
                .kv_scales = packed ? w_->kv_scales : nullptr,
                .cache = cache,
                .selected = selects ? w_->selected : nullptr,
                .selected_count = selects ? w_->selected_count : nullptr,
                .topk = selects ? topk : 0,
                .o = w_->o});
         },
         [cost](std::size_t, std::size_t) { return cost; }});
  }
}

void OperatorBench::define_rest() {
  const double tokens = wanted_.tokens;
  const auto weights = [this](const LayerContext& l) -> const LayerWeights& {
    return layer_of(bench_->model().weights(), static_cast<std::size_t>(l.layer));
  };
  operators_.push_back({"attention_out", kEvery,
                        [this, weights](const LayerContext& l, std::size_t) {
                          backend_->attention_out(l, knobs_, batch_,
                                                  {.weights = &weights(l).attn, .o = w_->o, .out = w_->out});
                        },
                        [this, tokens](std::size_t l, std::size_t) {
                          return output_cost(layer_of(*shapes_, l).attn, tokens);
                        }});
  operators_.push_back({"route", kEvery,
                        [this, weights](const LayerContext& l, std::size_t) {
                          backend_->route(l, knobs_, batch_,
                                          {.weights = &weights(l).ffn,
                                           .x = w_->x,
                                           .expert_ids = w_->expert_ids,
                                           .expert_weights = w_->expert_weights,
                                           .margin = nullptr});
                        },
                        [this, tokens](std::size_t l, std::size_t) {
                          return product_cost(layer_of(*shapes_, l).ffn.gate, tokens);
                        }});
  operators_.push_back({"moe", kEvery,
                        [this, weights](const LayerContext& l, std::size_t call) {
                          const std::size_t set = call % expert_calls_;
                          backend_->moe(
                              l, knobs_, batch_,
                              {.weights = &weights(l).ffn,
                               .x = w_->x,
                               .expert_ids = reinterpret_cast<const std::int32_t*>(device_ids_.get()) +
                                             set * (host_ids_.size() / expert_calls_),
                               .expert_weights = w_->expert_weights,
                               .out = w_->out});
                        },
                        [this, tokens](std::size_t l, std::size_t call) {
                          return experts_cost(layer_of(*shapes_, l).ffn, chosen(call), tokens);
                        }});
  const auto rows = static_cast<std::int32_t>(spans_.size());
  operators_.push_back(
      {"logits", kOnce,
       [this, rows](const LayerContext&, std::size_t) {
         backend_->logits(knobs_, {.head = bench_->model().weights().head,
                                   .x = w_->final_x,
                                   .num_rows = rows,
                                   .logits = w_->logits});
       },
       [this, rows](std::size_t, std::size_t) { return product_cost(shapes_->head, rows); }});
}

std::vector<std::string_view> OperatorBench::names() const {
  std::vector<std::string_view> names;
  for (const Operator& op : operators_) names.emplace_back(op.name);
  return names;
}

std::vector<LayerContext> OperatorBench::layers_of(const Operator& op) const {
  const ModelConfig& c = bench_->model().config();
  std::vector<LayerContext> contexts;
  for (std::int32_t l = 0; l < c.num_hidden_layers; ++l) {
    if (op.ratio >= 0 ? c.ratio(l) != op.ratio : op.ratio == kOnce && l > 0) continue;
    contexts.push_back({&c, l, c.ratio(l), c.ratio(l) == 0 ? rope_main_.data() : rope_compress_.data()});
  }
  return contexts;
}

Result<std::optional<OperatorResult>> OperatorBench::run(std::string_view name, const PassLimits& limits) {
  const auto found =
      std::find_if(operators_.begin(), operators_.end(), [&](const Operator& op) { return op.name == name; });
  PIVOT_CHECK(found != operators_.end(), "{}", name);
  const std::vector<LayerContext> layers = layers_of(*found);
  if (layers.empty()) return std::optional<OperatorResult>{};
  // Where one layer has all the experts, its calls go through the sets of them.
  const std::size_t rounds = found->name == "hc_seam" ? 2
                             : found->name == "moe"   ? (expert_calls_ + layers.size() - 1) / layers.size()
                                                      : 1;
  OperatorResult result;
  result.name = found->name;
  result.calls = static_cast<std::int32_t>(rounds * layers.size());
  Cost total;
  for (std::size_t i = 0; i < rounds * layers.size(); ++i)
    total += found->cost(static_cast<std::size_t>(layers[i % layers.size()].layer), i);
  result.working_set_bytes = total.bytes;
  result.cost = {total.bytes / result.calls, total.flops / result.calls};
  const auto record = [&] {
    for (std::size_t i = 0; i < rounds * layers.size(); ++i) found->call(layers[i % layers.size()], i);
  };
  std::vector<double> seconds;
  double spent = 0;
  for (int run = 0; run < limits.warm_up + limits.passes || spent < limits.seconds; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    backend_->run_step(
        {wanted_.tokens, 0, 0xbe0c4000u + static_cast<std::uint64_t>(found - operators_.begin())}, record);
    PIVOT_TRY_VOID(backend_->synchronize());
    const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (run >= limits.warm_up) seconds.push_back(taken);
    if (run >= limits.warm_up) spent += taken;
  }
  std::sort(seconds.begin(), seconds.end());
  result.seconds = seconds[seconds.size() / 2] / result.calls;
  result.best_seconds = seconds.front() / result.calls;
  return std::optional<OperatorResult>(std::move(result));
}

}  // namespace pivot::cli
