#include "model/forward.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "numeric/formats.h"
#include "ops/rope.h"

namespace pivot {
namespace {

std::int64_t product(std::initializer_list<std::int64_t> shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

// Copies named buffers to the sink's host side; does nothing without a sink.
class Taps {
 public:
  Taps(Backend& backend, TapSink* sink) : backend_(backend), sink_(sink) {}

  bool wants(std::string_view name, std::int32_t layer) const {
    return sink_ != nullptr && sink_->wants(name, layer);
  }

  void act(std::string_view name, std::int32_t layer, const Act* data,
           std::initializer_list<std::int64_t> shape) {
    if (!wants(name, layer)) return;
    const auto count = static_cast<std::size_t>(product(shape));
    values_.resize(count);
    if (backend_.activation_bytes() == 4) {
      fetch(values_.data(), data, count * 4);
    } else {
      narrow_.resize(count);
      fetch(narrow_.data(), data, count * 2);
      std::transform(narrow_.begin(), narrow_.end(), values_.begin(), [](BF16 x) { return to_float(x); });
    }
    sink_->take({name, layer, shape, values_, {}});
  }
  void f32(std::string_view name, std::int32_t layer, const float* data,
           std::initializer_list<std::int64_t> shape) {
    if (!wants(name, layer)) return;
    values_.resize(static_cast<std::size_t>(product(shape)));
    fetch(values_.data(), data, values_.size() * 4);
    sink_->take({name, layer, shape, values_, {}});
  }
  void i32(std::string_view name, std::int32_t layer, const std::int32_t* data,
           std::initializer_list<std::int64_t> shape) {
    if (!wants(name, layer)) return;
    ids_.resize(static_cast<std::size_t>(product(shape)));
    fetch(ids_.data(), data, ids_.size() * 4);
    sink_->take({name, layer, shape, {}, ids_});
  }

 private:
  void fetch(void* host, const void* device, std::size_t bytes) {
    // A device fault shows in forward()'s own synchronize, which reports it.
    (void)backend_.synchronize();
    backend_.download(host, device, static_cast<std::int64_t>(bytes));
  }

  Backend& backend_;
  TapSink* sink_;
  std::vector<float> values_;
  std::vector<BF16> narrow_;
  std::vector<std::int32_t> ids_;
};

// FNV-1a over what the ops read from the views on the host. The model's number stands for its workspace and
// options. A step whose sequences have one token each is another step than one of longer spans: no token
// reads what another one writes, and back-ends join kernels then.
std::uint64_t hash_views(std::span<const LayerCacheView> views, std::uint64_t model_id, bool single_tokens) {
  std::uint64_t hash = 0xcbf29ce484222325u ^ model_id ^ (single_tokens ? std::uint64_t{1} << 63 : 0);
  const auto mix = [&hash](auto value) {
    if constexpr (std::is_pointer_v<decltype(value)>)
      hash ^= reinterpret_cast<std::uintptr_t>(value);
    else
      hash ^= static_cast<std::uint64_t>(value);
    hash *= 0x100000001b3u;
  };
  const auto mix_pages = [&mix](const PagedView& v) {
    mix(v.base), mix(v.page_bytes), mix(v.page_rows), mix(v.page_table), mix(v.table_stride);
    mix(static_cast<int>(v.layout.format));
  };
  const auto mix_state = [&mix](const CompressorStateView& v) {
    mix(v.base), mix(v.slot_floats), mix(v.rows), mix(v.width);
  };
  for (const LayerCacheView& view : views) {
    mix(view.window.base), mix(view.window.slot_bytes), mix(view.window.rows);
    mix(static_cast<int>(view.window.layout.format));
    mix_pages(view.compressed);
    mix_pages(view.index_keys);
    mix_state(view.compressor);
    mix_state(view.index_compressor);
  }
  return hash;
}

}  // namespace

std::int32_t resolve_index_topk(const ModelConfig& config, const Knobs& knobs, std::int64_t max_context) {
  if (knobs.index_topk == kTopkAll) return 0;
  const std::int64_t topk = knobs.index_topk == kTopkFromCheckpoint ? config.index_topk : knobs.index_topk;
  return topk >= max_context / 4 ? 0 : static_cast<std::int32_t>(topk);
}

// What the blocks of one step share.
struct Model::Pass {
  StepBatch batch;
  std::span<const LayerCacheView> caches;
  // Ratio-4 entries visible to the last query of the longest sequence; where steps are replayed, of the
  // longest sequence there can be.
  std::int64_t most_entries = 0;
  Taps taps;
};

Result<std::unique_ptr<Model>> Model::create(std::shared_ptr<const ModelWeights> weights,
                                             std::shared_ptr<Backend> backend, const ModelOptions& options) {
  const ModelConfig& config = weights->config;
  std::unique_ptr<Model> model(new Model());
  model->options_ = options;
  ModelOptions& resolved = model->options_;
  if (resolved.max_context == 0) resolved.max_context = config.max_position_embeddings;
  if (resolved.max_context < 1 || resolved.max_context > config.max_position_embeddings)
    return fail(ErrorCode::kInvalidArgument, "max_context is {}; this model takes 1 to {} tokens",
                options.max_context, config.max_position_embeddings);
  if (options.max_step_tokens < 0 || options.max_step_spans < 1 || options.max_logit_rows < 1)
    return fail(ErrorCode::kInvalidArgument,
                "a step of {} tokens, {} sequences and {} logit rows is not possible",
                options.max_step_tokens, options.max_step_spans, options.max_logit_rows);
  PIVOT_TRY_VOID(backend->supports(*weights, options.knobs));

  static std::atomic<std::uint64_t> models{0};
  model->id_ = ++models;
  model->topk_ = resolve_index_topk(config, options.knobs, resolved.max_context);
  if (resolved.max_step_tokens == 0)
    resolved.max_step_tokens = default_step_tokens(config, backend->activation_bytes(), model->topk_);
  PIVOT_TRY(model->workspace_, Workspace::create(backend, config,
                                                 {resolved.max_step_tokens, resolved.max_step_spans,
                                                  resolved.max_logit_rows, model->topk_}));
  PIVOT_TRY(model->weights_, backend->place(std::move(weights)));
  model->backend_ = std::move(backend);

  const ModelConfig& placed = model->weights_->config;
  model->rope_main_ = rope_frequencies(placed.rope_main, placed.qk_rope_head_dim);
  model->rope_compress_ = rope_frequencies(placed.rope_compress, placed.qk_rope_head_dim);
  for (std::int32_t l = 0; l < placed.num_hidden_layers; ++l) {
    const int ratio = placed.ratio(l);
    model->contexts_.push_back(
        {&placed, l, ratio, (ratio == 0 ? model->rope_main_ : model->rope_compress_).data()});
  }
  return model;
}

Result<> Model::check(const Step& step) const {
  const std::int64_t vocab_size = config().vocab_size;
  if (step.token_ids.size() > static_cast<std::size_t>(options_.max_step_tokens) ||
      step.spans.size() > static_cast<std::size_t>(options_.max_step_spans) ||
      step.logit_rows.size() > static_cast<std::size_t>(options_.max_logit_rows))
    return fail(
        ErrorCode::kInvalidArgument,
        "a step of {} tokens, {} sequences and {} logit rows exceeds this model's workspace of {}, {} and {}",
        step.token_ids.size(), step.spans.size(), step.logit_rows.size(), options_.max_step_tokens,
        options_.max_step_spans, options_.max_logit_rows);
  for (std::size_t i = 0; i < step.token_ids.size(); ++i)
    if (step.token_ids[i] < 0 || step.token_ids[i] >= vocab_size)
      return fail(ErrorCode::kInvalidArgument, "token id {} at index {} is outside the vocabulary of {}",
                  step.token_ids[i], i, vocab_size);
  for (const SequenceSpan& span : step.spans)
    if (std::int64_t{span.start_position} + span.num_tokens > options_.max_context)
      return fail(ErrorCode::kContextOverflow, "a sequence of {} tokens exceeds this model's context of {}",
                  std::int64_t{span.start_position} + span.num_tokens, options_.max_context);

  PIVOT_CHECK(!step.token_ids.empty() && !step.spans.empty());
  PIVOT_CHECK(step.caches.size() == contexts_.size(), "{} cache views for {} layers", step.caches.size(),
              contexts_.size());
  std::int32_t next = 0;
  for (const SequenceSpan& span : step.spans) {
    PIVOT_CHECK(span.first_token == next && span.num_tokens > 0 && span.start_position >= 0, "{} {} {}",
                span.first_token, span.num_tokens, span.start_position);
    next += span.num_tokens;
  }
  PIVOT_CHECK(next == static_cast<std::int32_t>(step.token_ids.size()), "{} of {}", next,
              step.token_ids.size());
  return {};
}

Result<> Model::forward(const Step& step, TapSink* sink) {
  PIVOT_TRY_VOID(check(step));
  Workspace& w = *workspace_;
  const ModelConfig& c = config();
  const auto num_tokens = static_cast<std::int32_t>(step.token_ids.size());
  const auto num_rows = static_cast<std::int32_t>(step.logit_rows.size());

  Pass pass{{}, step.caches, 0, Taps(*backend_, sink)};
  if (backend_->replays_steps()) pass.most_entries = options_.max_context / 4;
  std::vector<std::int32_t> positions(step.token_ids.size());
  std::vector<std::int32_t> span_of(step.token_ids.size());
  for (std::size_t s = 0; s < step.spans.size(); ++s) {
    const SequenceSpan& span = step.spans[s];
    for (std::int32_t i = 0; i < span.num_tokens; ++i) {
      positions[static_cast<std::size_t>(span.first_token + i)] = span.start_position + i;
      span_of[static_cast<std::size_t>(span.first_token + i)] = static_cast<std::int32_t>(s);
    }
    pass.most_entries =
        std::max<std::int64_t>(pass.most_entries, (span.start_position + span.num_tokens) / 4);
  }
  // The step's description is the first part of the workspace: one copy carries all of it.
  auto* base = reinterpret_cast<std::byte*>(w.token_ids);
  description_.resize(w.step_description_bytes);
  std::size_t used = 0;
  const auto describe_step = [&](auto* device, const auto& host) {
    const auto offset = static_cast<std::size_t>(reinterpret_cast<std::byte*>(device) - base);
    std::memcpy(description_.data() + offset, host.data(), host.size() * sizeof(host[0]));
    used = std::max(used, offset + host.size() * sizeof(host[0]));
  };
  describe_step(w.token_ids, step.token_ids);
  describe_step(w.positions, positions);
  describe_step(w.span_of, span_of);
  describe_step(w.spans, step.spans);
  if (num_rows > 0) describe_step(w.logit_rows, step.logit_rows);
  backend_->upload(base, description_.data(), static_cast<std::int64_t>(used));
  pass.batch = {
      num_tokens, w.token_ids,      w.positions, w.span_of, static_cast<std::int32_t>(step.spans.size()),
      w.spans,    step.spans.data()};

  if (sink != nullptr)
    record(pass, num_rows);
  else
    backend_->run_step(
        {num_tokens, num_rows, hash_views(step.caches, id_, step.spans.size() == step.token_ids.size())},
        [&] { record(pass, num_rows); });
  return backend_->synchronize();
}

void Model::record(Pass& pass, std::int32_t num_rows) {
  Workspace& w = *workspace_;
  const ModelConfig& c = config();
  const std::int64_t num_tokens = pass.batch.num_tokens;
  // 2.1
  backend_->embed(pass.batch,
                  {.embed = weights_->embed, .num_streams = static_cast<std::int32_t>(c.hc_mult), .h = w.h});
  pass.taps.act("hc_in", 0, w.h, {num_tokens, c.hc_mult, c.hidden_size});
  for (std::int32_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    attention_block(pass, layer);
    moe_block(pass, layer);
  }
  // 2.2 hc_head, final norm, and the LM head on the rows that need logits.
  const auto last = static_cast<std::int32_t>(c.num_hidden_layers);
  backend_->hc_head(c, knobs(), pass.batch,
                    {.hc = &weights_->hc_head,
                     .norm = weights_->norm,
                     .h = w.h,
                     .sublayer_out = w.out,
                     .post = w.post,
                     .comb = w.comb,
                     .num_rows = num_rows,
                     .rows = w.logit_rows,
                     .x = w.final_x});
  pass.taps.act("hc", last - 1, w.h, {num_tokens, c.hc_mult, c.hidden_size});
  if (num_rows > 0) {
    pass.taps.act("final", last, w.final_x, {num_rows, c.hidden_size});
    backend_->logits(knobs(),
                     {.head = weights_->head, .x = w.final_x, .num_rows = num_rows, .logits = w.logits});
  }
}

// 2.2 around 2.4, 2.5 and 2.6.
void Model::attention_block(Pass& pass, std::int32_t layer) {
  Workspace& w = *workspace_;
  const ModelConfig& c = config();
  const Knobs& k = knobs();
  const LayerContext& context = contexts_[static_cast<std::size_t>(layer)];
  const LayerWeights& weights = weights_->layers[static_cast<std::size_t>(layer)];
  const LayerCacheView& cache = pass.caches[static_cast<std::size_t>(layer)];
  const std::int64_t tokens = pass.batch.num_tokens;

  backend_->hc_seam(context, k, pass.batch,
                    {.hc = &weights.attn_hc,
                     .norm = weights.attn_norm,
                     .h = w.h,
                     .sublayer_out = layer == 0 ? nullptr : w.out,
                     .post = w.post,
                     .comb = w.comb,
                     .x = w.x});
  if (layer > 0) pass.taps.act("hc", layer - 1, w.h, {tokens, c.hc_mult, c.hidden_size});
  pass.taps.act("attn_in", layer, w.x, {tokens, c.hidden_size});

  const bool has_indexer = context.ratio == 4;
  // A packed ring stores the scale bytes that the rounding of kv used.
  std::uint8_t* kv_scales = cache.window.layout.format == RowFormat::kKvPacked ? w.kv_scales : nullptr;
  backend_->latent(context, k, pass.batch,
                   {.weights = &weights.attn,
                    .x = w.x,
                    .qr = w.qr,
                    .kv = w.kv,
                    .kv_scales = kv_scales,
                    .index_weights = has_indexer ? w.index_weights : nullptr,
                    .cache = cache});
  pass.taps.act("qr", layer, w.qr, {tokens, c.q_lora_rank});
  pass.taps.act("kv", layer, w.kv, {tokens, c.head_dim});

  backend_->query(
      context, k, pass.batch,
      {.weights = &weights.attn, .qr = w.qr, .q = w.q, .index_q = has_indexer ? w.index_q : nullptr});
  pass.taps.act("q", layer, w.q, {tokens, c.num_attention_heads, c.head_dim});

  // While every query sees at most topk entries the selection is all of them, and attending to all visible
  // entries in order is the same computation.
  const bool choose = has_indexer && topk_ > 0 && pass.most_entries > topk_;
  if (has_indexer) {
    pass.taps.act("index_q", layer, w.index_q, {tokens, c.index_n_heads, c.index_head_dim});
    pass.taps.f32("index_w", layer, w.index_weights, {tokens, c.index_n_heads});
    if (choose || (topk_ > 0 && pass.taps.wants("index_topk", layer)))
      backend_->index_select(context, k, pass.batch,
                             {.index_q = w.index_q,
                              .index_weights = w.index_weights,
                              .index_keys = cache.index_keys,
                              .topk = topk_,
                              .selected = w.selected,
                              .count = w.selected_count});
    if (topk_ > 0) pass.taps.i32("index_topk", layer, w.selected, {tokens, topk_});
  }

  backend_->attention(context, k, pass.batch,
                      {.weights = &weights.attn,
                       .q = w.q,
                       .kv = w.kv,
                       .kv_scales = kv_scales,
                       .cache = cache,
                       .selected = choose ? w.selected : nullptr,
                       .selected_count = choose ? w.selected_count : nullptr,
                       .topk = choose ? topk_ : 0,
                       .o = w.o});
  pass.taps.act("o", layer, w.o, {tokens, c.num_attention_heads, c.head_dim});
  backend_->attention_out(context, k, pass.batch, {.weights = &weights.attn, .o = w.o, .out = w.out});
  pass.taps.act("attn_out", layer, w.out, {tokens, c.hidden_size});
}

// 2.2 around 2.7.
void Model::moe_block(Pass& pass, std::int32_t layer) {
  Workspace& w = *workspace_;
  const ModelConfig& c = config();
  const Knobs& k = knobs();
  const LayerContext& context = contexts_[static_cast<std::size_t>(layer)];
  const LayerWeights& weights = weights_->layers[static_cast<std::size_t>(layer)];
  const std::int64_t tokens = pass.batch.num_tokens;

  backend_->hc_seam(context, k, pass.batch,
                    {.hc = &weights.ffn_hc,
                     .norm = weights.ffn_norm,
                     .h = w.h,
                     .sublayer_out = w.out,
                     .post = w.post,
                     .comb = w.comb,
                     .x = w.x});
  pass.taps.act("ffn_in", layer, w.x, {tokens, c.hidden_size});
  backend_->route(context, k, pass.batch,
                  {.weights = &weights.ffn,
                   .x = w.x,
                   .expert_ids = w.expert_ids,
                   .expert_weights = w.expert_weights,
                   .margin = pass.taps.wants("gate_margin", layer) ? w.gate_margin : nullptr});
  pass.taps.i32("gate_ids", layer, w.expert_ids, {tokens, c.num_experts_per_tok});
  pass.taps.f32("gate_w", layer, w.expert_weights, {tokens, c.num_experts_per_tok});
  pass.taps.f32("gate_margin", layer, w.gate_margin, {tokens});
  backend_->moe(context, k, pass.batch,
                {.weights = &weights.ffn,
                 .x = w.x,
                 .expert_ids = w.expert_ids,
                 .expert_weights = w.expert_weights,
                 .out = w.out});
  pass.taps.act("ffn_out", layer, w.out, {tokens, c.hidden_size});
}

void Model::read_logits(std::int32_t row, std::span<float> values) const {
  PIVOT_CHECK(row >= 0 && row < options_.max_logit_rows, "{} of {}", row, options_.max_logit_rows);
  PIVOT_CHECK(values.size() == static_cast<std::size_t>(config().vocab_size), "{} of {}", values.size(),
              config().vocab_size);
  backend_->download(values.data(), workspace_->logits + row * config().vocab_size,
                     static_cast<std::int64_t>(values.size() * sizeof(float)));
}

}  // namespace pivot
