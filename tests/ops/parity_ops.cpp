#include "ops/parity_ops.h"

#include <algorithm>

#include "base/check.h"
#include "numeric/formats.h"
#include "ops/rope.h"

namespace pivot::test {

// Device memory of one op call.
class OpRunner::Memory {
 public:
  explicit Memory(Backend& backend) : backend_(backend) {}
  ~Memory() {
    for (std::byte* p : taken_) backend_.release(p);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T>
  T* make(std::int64_t count, int fill = 0xff) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    return reinterpret_cast<T*>(allocate(bytes, fill));
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* device = make<T>(static_cast<std::int64_t>(values.size()));
    backend_.upload(device, values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)));
    return device;
  }
  // Activations in the back-end's own width; NaN until written.
  Act* make_act(std::int64_t count) { return allocate(count * backend_.activation_bytes(), 0xff); }
  Act* upload_act(const std::vector<float>& values) {
    if (backend_.activation_bytes() == 4) return upload(values);
    std::vector<std::uint16_t> narrow;
    for (const float value : values) narrow.push_back(to_bf16(value).bits);
    return upload(narrow);
  }
  template <class T>
  std::vector<T> download(const T* device, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    PIVOT_CHECK(backend_.synchronize());
    backend_.download(values.data(), device, count * static_cast<std::int64_t>(sizeof(T)));
    return values;
  }
  std::vector<float> download_act(const Act* device, std::int64_t count) {
    if (backend_.activation_bytes() == 4) return download(static_cast<const float*>(device), count);
    std::vector<float> values;
    for (const std::uint16_t bits : download(static_cast<const std::uint16_t*>(device), count))
      values.push_back(to_float(BF16{bits}));
    return values;
  }
  StepBatch batch(const StepCase& step) {
    return {step.num_tokens(),
            upload(step.token_ids),
            upload(step.positions),
            upload(step.span_of),
            static_cast<std::int32_t>(step.spans.size()),
            upload(step.spans),
            step.spans.data()};
  }
  LayerCacheView cache(const StepCase& step) {
    const std::int32_t* table = upload(step.page_table);
    LayerCacheView view;
    view.window = {upload(step.rings), step.slot_bytes, step.ring_rows, step.kv};
    view.compressed = {upload(step.pages), step.page_bytes, step.page_rows, step.kv, table,
                       step.table_stride};
    view.compressor = {upload(step.states), std::int64_t{2} * step.state_rows * step.state_width,
                       step.state_rows, step.state_width};
    view.index_keys = {upload(step.index_pages), step.index_page_bytes, step.page_rows, step.index_key, table,
                       step.table_stride};
    view.index_compressor = {upload(step.index_states), std::int64_t{2} * 8 * step.index_width, 8,
                             step.index_width};
    return view;
  }

 private:
  std::byte* allocate(std::int64_t bytes, int fill) {
    Result<std::byte*> memory = backend_.allocate(std::max<std::int64_t>(bytes, 1), "a test buffer");
    PIVOT_CHECK(memory, "{}", memory.error().to_string());
    backend_.fill(*memory, fill, std::max<std::int64_t>(bytes, 1));
    taken_.push_back(*memory);
    return *memory;
  }

  Backend& backend_;
  std::vector<std::byte*> taken_;
};

OpRunner::OpRunner(std::shared_ptr<Backend> backend, std::shared_ptr<const ModelWeights> weights, Knobs knobs)
    : backend_(std::move(backend)), knobs_(knobs) {
  const Result<> supported = backend_->supports(*weights, knobs);
  PIVOT_CHECK(supported, "{}", supported.error().to_string());
  Result<std::shared_ptr<const ModelWeights>> placed = backend_->place(std::move(weights));
  PIVOT_CHECK(placed, "{}", placed.error().to_string());
  weights_ = *placed;
  frequencies_ = rope_frequencies(weights_->config.rope(0), weights_->config.qk_rope_head_dim);
}

Outputs OpRunner::embed(const StepCase& step) {
  Memory memory(*backend_);
  const ModelConfig& c = weights_->config;
  const std::int64_t count = step.num_tokens() * c.hc_mult * c.hidden_size;
  Act* h = memory.make_act(count);
  backend_->embed(memory.batch(step), {weights_->embed, static_cast<std::int32_t>(c.hc_mult), h});
  return {{{"h", memory.download_act(h, count)}}, {}, {}};
}

Outputs OpRunner::hc_seam(const StepCase& step, const OpInputs& inputs) {
  Memory memory(*backend_);
  const ModelConfig& c = weights_->config;
  const std::int64_t tokens = step.num_tokens(), s = c.hc_mult;
  Act* h = memory.upload_act(inputs.h);
  float* post = memory.upload(inputs.post);
  float* comb = memory.upload(inputs.comb);
  Act* x = memory.make_act(tokens * c.hidden_size);
  const Act* out = inputs.sublayer_out.empty() ? nullptr : memory.upload_act(inputs.sublayer_out);
  backend_->hc_seam(context(), knobs_, memory.batch(step),
                    {&layer().attn_hc, layer().attn_norm, h, out, post, comb, x});
  return {{{"h", memory.download_act(h, tokens * s * c.hidden_size)},
           {"post", memory.download(post, tokens * s)},
           {"comb", memory.download(comb, tokens * s * s)},
           {"x", memory.download_act(x, tokens * c.hidden_size)}},
          {},
          {}};
}

Outputs OpRunner::hc_head(const StepCase& step, const OpInputs& inputs,
                          const std::vector<std::int32_t>& rows) {
  Memory memory(*backend_);
  const ModelConfig& c = weights_->config;
  const auto count = static_cast<std::int32_t>(rows.size());
  Act* h = memory.upload_act(inputs.h);
  Act* x = memory.make_act(count * c.hidden_size);
  backend_->hc_head(c, knobs_, memory.batch(step),
                    {&weights_->hc_head, weights_->norm, h, memory.upload_act(inputs.sublayer_out),
                     memory.upload(inputs.post), memory.upload(inputs.comb), count, memory.upload(rows), x});
  return {{{"h", memory.download_act(h, step.num_tokens() * c.hc_mult * c.hidden_size)},
           {"x", memory.download_act(x, count * c.hidden_size)}},
          {},
          {}};
}

Outputs OpRunner::latent(const StepCase& step, const OpInputs& inputs) {
  Memory memory(*backend_);
  const ModelConfig& c = weights_->config;
  const std::int64_t tokens = step.num_tokens();
  const int ratio = c.compress_ratios[0];
  const std::int64_t groups = kv_scale_groups(
      kv_packed_layout(static_cast<std::int32_t>(c.head_dim), static_cast<std::int32_t>(c.qk_rope_head_dim)));
  Act* qr = memory.make_act(tokens * c.q_lora_rank);
  Act* kv = memory.make_act(tokens * c.head_dim);
  auto* index_weights = memory.make<float>(tokens * c.index_n_heads);
  auto* scales = memory.make<std::uint8_t>(tokens * groups, 0);
  const LayerCacheView cache = memory.cache(step);
  backend_->latent(context(), knobs_, memory.batch(step),
                   {.weights = &layer().attn,
                    .x = memory.upload_act(inputs.x),
                    .qr = qr,
                    .kv = kv,
                    .kv_scales = step.kv.format == RowFormat::kKvPacked ? scales : nullptr,
                    .index_weights = ratio == 4 ? index_weights : nullptr,
                    .cache = cache});
  Outputs out;
  out.values["qr"] = memory.download_act(qr, tokens * c.q_lora_rank);
  out.values["kv"] = memory.download_act(kv, tokens * c.head_dim);
  if (ratio != 0) {
    out.values["states"] =
        memory.download(cache.compressor.base, static_cast<std::int64_t>(step.states.size()));
    out.bytes["pages"] = memory.download(cache.compressed.base, static_cast<std::int64_t>(step.pages.size()));
  }
  if (ratio == 4) {
    out.values["index_weights"] = memory.download(index_weights, tokens * c.index_n_heads);
    out.values["index_states"] =
        memory.download(cache.index_compressor.base, static_cast<std::int64_t>(step.index_states.size()));
    out.bytes["index_pages"] =
        memory.download(cache.index_keys.base, static_cast<std::int64_t>(step.index_pages.size()));
  }
  return out;
}

Outputs OpRunner::query(const StepCase& step, const OpInputs& inputs) {
  Memory memory(*backend_);
  const ModelConfig& c = weights_->config;
  const std::int64_t q_count = step.num_tokens() * c.num_attention_heads * c.head_dim;
  const std::int64_t index_count = step.num_tokens() * c.index_n_heads * c.index_head_dim;
  const bool indexed = c.compress_ratios[0] == 4;
  Act* q = memory.make_act(q_count);
  Act* index_q = memory.make_act(index_count);
  backend_->query(context(), knobs_, memory.batch(step),
                  {&layer().attn, memory.upload_act(inputs.x), q, indexed ? index_q : nullptr});
  Outputs out;
  out.values["q"] = memory.download_act(q, q_count);
  if (indexed) out.values["index_q"] = memory.download_act(index_q, index_count);
  return out;
}

Outputs OpRunner::index_select(const StepCase& step, const OpInputs& inputs, std::int32_t topk) {
  Memory memory(*backend_);
  const std::int64_t tokens = step.num_tokens();
  auto* selected = memory.make<std::int32_t>(tokens * topk, 0x55);
  auto* count = memory.make<std::int32_t>(tokens, 0x55);
  backend_->index_select(context(), knobs_, memory.batch(step),
                         {memory.upload_act(inputs.index_q), memory.upload(inputs.index_weights),
                          memory.cache(step).index_keys, topk, selected, count});
  return {{},
          {{"selected", memory.download(selected, tokens * topk)}, {"count", memory.download(count, tokens)}},
          {}};
}

Outputs OpRunner::attention(const StepCase& step, const OpInputs& inputs, std::int32_t topk) {
  Memory memory(*backend_);
  const ModelConfig& c = weights_->config;
  const std::int64_t count = step.num_tokens() * c.num_attention_heads * c.head_dim;
  Act* o = memory.make_act(count);
  const LayerCacheView cache = memory.cache(step);
  backend_->attention(context(), knobs_, memory.batch(step),
                      {&layer().attn, memory.upload_act(inputs.x), memory.upload_act(inputs.kv), nullptr,
                       cache, topk > 0 ? memory.upload(inputs.selected) : nullptr,
                       topk > 0 ? memory.upload(inputs.count) : nullptr, topk, o});
  return {{{"o", memory.download_act(o, count)}},
          {},
          {{"rings", memory.download(cache.window.base, static_cast<std::int64_t>(step.rings.size()))}}};
}

Outputs OpRunner::attention_out(const StepCase& step, const OpInputs& inputs) {
  Memory memory(*backend_);
  const std::int64_t count = step.num_tokens() * weights_->config.hidden_size;
  Act* out = memory.make_act(count);
  backend_->attention_out(context(), knobs_, memory.batch(step),
                          {&layer().attn, memory.upload_act(inputs.x), out});
  return {{{"out", memory.download_act(out, count)}}, {}, {}};
}

Outputs OpRunner::route(const StepCase& step, const OpInputs& inputs) {
  Memory memory(*backend_);
  const std::int64_t count = step.num_tokens() * weights_->config.num_experts_per_tok;
  auto* ids = memory.make<std::int32_t>(count, 0x55);
  auto* weights = memory.make<float>(count);
  auto* margin = memory.make<float>(step.num_tokens());
  backend_->route(context(), knobs_, memory.batch(step),
                  {&layer().ffn, memory.upload_act(inputs.x), ids, weights, margin});
  return {
      {{"weights", memory.download(weights, count)}, {"margin", memory.download(margin, step.num_tokens())}},
      {{"ids", memory.download(ids, count)}},
      {}};
}

Outputs OpRunner::moe(const StepCase& step, const OpInputs& inputs) {
  Memory memory(*backend_);
  const std::int64_t count = step.num_tokens() * weights_->config.hidden_size;
  Act* out = memory.make_act(count);
  backend_->moe(context(), knobs_, memory.batch(step),
                {&layer().ffn, memory.upload_act(inputs.x), memory.upload(inputs.expert_ids),
                 memory.upload(inputs.expert_weights), out});
  return {{{"out", memory.download_act(out, count)}}, {}, {}};
}

Outputs OpRunner::logits(const std::vector<float>& x, std::int32_t rows) {
  Memory memory(*backend_);
  const std::int64_t count = rows * weights_->head.rows;
  auto* logits = memory.make<float>(count);
  backend_->logits(knobs_, {weights_->head, memory.upload_act(x), rows, logits});
  return {{{"logits", memory.download(logits, count)}}, {}, {}};
}

}  // namespace pivot::test
