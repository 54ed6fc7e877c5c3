// The operators of the CUDA back-end: launches, in the order of docs/specification section 2.
#include "ops/cuda/backend.h"

#include "ops/cuda/attention/prefill.h"
#include "ops/cuda/cuda_backend.h"

#include <cmath>
#include <utility>

namespace pivot::cuda {
namespace {

IndexRounding index_rounding(const Knobs& knobs) {
  return knobs.index_keys == IndexPrecision::kFp4   ? IndexRounding::kFp4
         : knobs.index_keys == IndexPrecision::kFp8 ? IndexRounding::kFp8
                                                    : IndexRounding::kNone;
}
float inverse_sqrt(std::int64_t n) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n))); }

}  // namespace

SeamArguments CudaBackend::seam(const ModelConfig& config, const Knobs& knobs, std::int64_t tokens) {
  SeamArguments a;
  a.shape = {static_cast<std::int32_t>(config.hidden_size),
             static_cast<std::int32_t>(config.hc_sinkhorn_iters), static_cast<float>(config.hc_eps),
             static_cast<float>(config.rms_norm_eps)};
  a.precision = knobs.mhc == HcPrecision::kF32    ? HyperPrecision::kF32
                : knobs.mhc == HcPrecision::kTf32 ? HyperPrecision::kTf32
                                                  : HyperPrecision::kBf16;
  a.partials = scratch_.get<float>("hc_partials", seam_partial_floats(tokens, config.hidden_size));
  return a;
}

void CudaBackend::hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                          const HcSeamParams& p) {
  const std::int64_t width = layer.config->hidden_size;
  SeamArguments a = seam(*layer.config, knobs, batch.num_tokens);
  a.fn = p.hc->fn.data();
  a.base = p.hc->base.data();
  a.scale = p.hc->scale.data();
  a.norm = p.norm.data();
  a.h = p.h;
  a.sublayer_out = p.sublayer_out;
  a.post = p.post;
  a.comb = p.comb;
  a.x = p.x;
  settle_tail();
  const Products path = products(batch.num_tokens);
  a.many_tokens = path == Products::kWgmma;
  // What the sublayer does not need is done on the way by a later kernel, or for a long step by one of its
  // own that has a warp for each token.
  const bool few = switches_.fused && path == Products::kDecode && batch.num_tokens <= kTailTokens;
  if (few || a.many_tokens) {
    a.coefficients = scratch_.get<float>("hc_coefficients", batch.num_tokens * kTailCoefficients);
    tail_ = {batch.num_tokens, a.shape.sinkhorn_iters, a.shape.hc_eps, a.coefficients, p.post, p.comb};
  }
  a.x_values = rounded_values_ = scratch_.get<std::uint16_t>("x_values", batch.num_tokens * width);
  a.x_scales = rounded_scales_ = scratch_.get<float>("x_scales", batch.num_tokens * width / 128);
  launch_seam(a, batch.num_tokens, stream_);
  if (!few) settle_tail();
  rounded_of_ = p.x;
  rounded_cols_ = width;
}

void CudaBackend::hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
                          const HcHeadParams& p) {
  settle_tail();
  SeamArguments a = seam(config, knobs, batch.num_tokens);
  a.fn = p.hc->fn.data();
  a.base = p.hc->base.data();
  a.scale = p.hc->scale.data();
  a.norm = p.norm.data();
  a.h = p.h;
  a.sublayer_out = p.sublayer_out;
  a.post = const_cast<float*>(p.post);
  a.comb = const_cast<float*>(p.comb);
  a.x = p.x;
  launch_head(a, batch.num_tokens, p.rows, p.num_rows, stream_);
}

void CudaBackend::latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                         const LatentParams& p) {
  const ModelConfig& c = *layer.config;
  const AttentionWeights& w = *p.weights;
  const std::int64_t tokens = batch.num_tokens;
  const Products path = products(tokens);
  const LinearInput quantized =
      path != Products::kDecode
          ? LinearInput{static_cast<const std::uint16_t*>(p.x), nullptr, c.hidden_size}
          : operand(w.wq_a, knobs.dense_act, p.x, tokens, c.hidden_size, "latent_values", "latent_scales");
  const LinearInput raw{static_cast<const std::uint16_t*>(p.x), nullptr, c.hidden_size};
  auto* a = scratch_.get<std::uint16_t>("latent_a", tokens * c.q_lora_rank);
  auto* kv = scratch_.get<std::uint16_t>("latent_kv", tokens * c.head_dim);
  std::vector<LinearJob> jobs = {
      {w.wq_a, w.wq_a.format == MatrixFormat::kBF16 ? raw : quantized, a, c.q_lora_rank, true},
      {w.wkv, w.wkv.format == MatrixFormat::kBF16 ? raw : quantized, kv, c.head_dim, true}};
  const auto compress_jobs = [&](const CompressorWeights& cw, const char* k_name, const char* s_name,
                                 float*& k, float*& s) {
    k = scratch_.get<float>(k_name, tokens * cw.wkv.rows);
    s = scratch_.get<float>(s_name, tokens * cw.wgate.rows);
    jobs.push_back({cw.wkv, raw, k, cw.wkv.rows, false});
    jobs.push_back({cw.wgate, raw, s, cw.wgate.rows, false});
  };
  float *k = nullptr, *s = nullptr, *index_k = nullptr, *index_s = nullptr;
  std::uint16_t* index_raw = nullptr;
  if (layer.ratio != 0) compress_jobs(*w.compressor, "compress_k", "compress_s", k, s);
  if (layer.ratio == 4) {
    compress_jobs(w.indexer->compressor, "index_compress_k", "index_compress_s", index_k, index_s);
    index_raw = scratch_.get<std::uint16_t>("index_weights_raw", tokens * c.index_n_heads);
    jobs.push_back({w.indexer->weights_proj, raw, index_raw, c.index_n_heads, true});
  }
  if (path == Products::kDecode)
    launch_linear(jobs, tokens, stream_, std::exchange(tail_, {}));
  else
    run_products(path, jobs, tokens, {p.x, c.hidden_size, knobs.dense_act});

  LatentArguments l;
  l.batch = batch;
  l.eps = static_cast<float>(c.rms_norm_eps);
  l.frequencies = frequencies(layer);
  l.rank = static_cast<std::int32_t>(c.q_lora_rank);
  l.head_dim = static_cast<std::int32_t>(c.head_dim);
  l.rope = static_cast<std::int32_t>(c.qk_rope_head_dim);
  l.index_heads = static_cast<std::int32_t>(c.index_n_heads);
  l.a = a;
  l.kv_raw = kv;
  l.index_raw = index_raw;
  l.index_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_head_dim)) /
                                     std::sqrt(static_cast<double>(c.index_n_heads)));
  l.q_norm = w.q_norm.data();
  l.kv_norm = w.kv_norm.data();
  l.qr = p.qr;
  l.qr_values = scratch_.get<std::uint16_t>("qr_values", tokens * c.q_lora_rank);
  l.qr_scales = scratch_.get<float>("qr_scales", tokens * c.q_lora_rank / 128);
  l.kv = p.kv;
  l.round_kv = knobs.kv == KvPrecision::kFp8;
  l.kv_scales = p.kv_scales;
  l.index_weights = index_raw == nullptr ? nullptr : p.index_weights;
  rounded_of_ = p.qr;
  rounded_cols_ = c.q_lora_rank;
  rounded_values_ = l.qr_values;
  rounded_scales_ = l.qr_scales;

  std::vector<CompressArguments> compressors;
  const auto compress = [&](const CompressorWeights& cw, const float* cw_k, const float* cw_score,
                            const CompressorStateView& state, const PagedView& out) -> CompressArguments& {
    CompressArguments& m = compressors.emplace_back();
    m.batch = batch;
    m.eps = l.eps;
    m.frequencies = l.frequencies;
    m.ratio = layer.ratio;
    m.width = static_cast<std::int32_t>(cw.width);
    m.rope = l.rope;
    m.k = cw_k;
    m.score = cw_score;
    m.ape = cw.ape.data();
    m.norm = cw.norm.data();
    m.state = state;
    m.out = out;
    m.round_kv = l.round_kv;
    return m;
  };
  if (layer.ratio != 0) compress(*w.compressor, k, s, p.cache.compressor, p.cache.compressed);
  if (layer.ratio == 4) {
    CompressArguments& m =
        compress(w.indexer->compressor, index_k, index_s, p.cache.index_compressor, p.cache.index_keys);
    m.index_key = true;
    m.index_rounding = index_rounding(knobs);
  }
  // Whether a step is of single tokens is part of its graph's key (Model::forward).
  if (switches_.fused && batch.num_spans == batch.num_tokens)
    return launch_latent_step(l, compressors, stream_);
  launch_latent(l, stream_);
  for (const CompressArguments& m : compressors) launch_compress(m, stream_);
}

void CudaBackend::query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                        const QueryParams& p) {
  const ModelConfig& c = *layer.config;
  const AttentionWeights& w = *p.weights;
  const std::int64_t tokens = batch.num_tokens;
  const Products path = products(tokens);
  const auto input = [&](const Matrix& m) {
    if (path != Products::kDecode)
      return LinearInput{static_cast<const std::uint16_t*>(p.qr), nullptr, c.q_lora_rank};
    return operand(m, knobs.dense_act, p.qr, tokens, c.q_lora_rank, "query_values", "query_scales");
  };
  std::vector<LinearJob> jobs = {{w.wq_b, input(w.wq_b), p.q, c.num_attention_heads * c.head_dim, true}};
  const bool indexed = layer.ratio == 4 && p.index_q != nullptr;
  if (indexed) {
    const Matrix& m = w.indexer->wq_b;
    jobs.push_back({m, input(m), p.index_q, m.rows, true});
  }
  run_products(path, jobs, tokens, {p.qr, c.q_lora_rank, knobs.dense_act});
  QueryArguments q;
  q.batch = batch;
  q.eps = static_cast<float>(c.rms_norm_eps);
  q.frequencies = frequencies(layer);
  q.rope = static_cast<std::int32_t>(c.qk_rope_head_dim);
  q.heads = static_cast<std::int32_t>(c.num_attention_heads);
  q.head_dim = static_cast<std::int32_t>(c.head_dim);
  q.index_heads = static_cast<std::int32_t>(c.index_n_heads);
  q.index_dim = static_cast<std::int32_t>(c.index_head_dim);
  q.q = p.q;
  q.index_q = indexed ? p.index_q : nullptr;
  q.index_rounding = index_rounding(knobs);
  launch_query(q, switches_.fused, stream_);
}

void CudaBackend::index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                               const IndexSelectParams& p) {
  const ModelConfig& c = *layer.config;
  IndexArguments a;
  a.batch = batch;
  a.heads = static_cast<std::int32_t>(c.index_n_heads);
  a.dim = static_cast<std::int32_t>(c.index_head_dim);
  a.index_q = p.index_q;
  a.index_weights = p.index_weights;
  a.keys = p.index_keys;
  a.bf16_scores = knobs.index_score == ScorePrecision::kBf16;
  a.topk = p.topk;
  a.selected = p.selected;
  a.count = p.count;
  // The page table bounds the entries a row can have, so the scratch does not depend on live lengths.
  a.score_stride = std::int64_t{p.index_keys.table_stride} * p.index_keys.page_rows;
  // A step of many tokens is scored in slices, so that the scores stay within 1 GiB.
  const std::int64_t slice = score_slice_tokens(batch.num_tokens, a.score_stride);
  a.scores = scratch_.get<float>("index_scores", slice * a.score_stride);
  const bool shared_scores =
      products(batch.num_tokens) == Products::kWgmma &&
      prefill_scores_take(a.heads, a.dim, static_cast<std::int64_t>(properties_.sharedMemPerBlockOptin));
  for (std::int64_t first = 0; first < batch.num_tokens; first += slice) {
    IndexArguments part = a;
    part.batch.num_tokens =
        static_cast<std::int32_t>(std::min<std::int64_t>(slice, batch.num_tokens - first));
    part.batch.positions = batch.positions + first;
    part.batch.span_of = batch.span_of + first;
    part.index_q = static_cast<const std::uint16_t*>(p.index_q) + first * c.index_n_heads * c.index_head_dim;
    part.index_weights = p.index_weights + first * c.index_n_heads;
    part.selected = p.selected + first * p.topk;
    part.count = p.count + first;
    if (shared_scores)
      launch_prefill_index_scores(part, properties_.multiProcessorCount, stream_);
    else
      launch_index_scores(part, properties_.multiProcessorCount, stream_);
    launch_topk(part, switches_.cluster_topk, stream_);
  }
}

void CudaBackend::attention(const LayerContext& layer, const Knobs&, const StepBatch& batch,
                            const AttentionParams& p) {
  const ModelConfig& c = *layer.config;
  AttentionArguments a;
  a.batch = batch;
  a.heads = static_cast<std::int32_t>(c.num_attention_heads);
  a.head_dim = static_cast<std::int32_t>(c.head_dim);
  a.rope = static_cast<std::int32_t>(c.qk_rope_head_dim);
  a.window = static_cast<std::int32_t>(c.sliding_window);
  a.ratio = layer.ratio;
  a.scale = inverse_sqrt(c.head_dim);
  a.sink = p.weights->attn_sink.data();
  a.frequencies = frequencies(layer);
  a.q = p.q;
  a.kv = p.kv;
  a.ring = p.cache.window;
  a.compressed = p.cache.compressed;
  a.selected = p.selected;
  a.selected_count = p.selected_count;
  a.topk = p.topk;
  a.o = p.o;
  const WindowArguments window{batch, p.kv, p.kv_scales, p.cache.window};
  if (products(batch.num_tokens) == Products::kWgmma &&
      prefill_attention_takes(a.heads, a.head_dim, a.rope,
                              static_cast<std::int64_t>(properties_.sharedMemPerBlockOptin))) {
    launch_prefill_attention(a, properties_.multiProcessorCount, stream_);
    return launch_commit_window(window, stream_);
  }
  std::int64_t keys = c.sliding_window;
  if (layer.ratio != 0)
    keys += p.selected != nullptr
                ? p.topk
                : std::int64_t{p.cache.compressed.table_stride} * p.cache.compressed.page_rows;
  a.head_groups =
      attention_head_groups(batch.num_tokens, a.heads, a.head_dim, properties_.multiProcessorCount,
                            static_cast<std::int64_t>(properties_.sharedMemPerBlockOptin));
  a.splits = attention_splits(batch.num_tokens, a.heads, keys, properties_.multiProcessorCount);
  const std::int64_t parts = a.splits == 1 ? 0 : std::int64_t{batch.num_tokens} * a.splits * a.heads;
  a.partial_o = scratch_.get<float>("attention_o", parts * a.head_dim);
  a.partial_ml = scratch_.get<float>("attention_ml", parts * 2);
  launch_attention(a, switches_.fused ? &window : nullptr, stream_);
  if (!switches_.fused) launch_commit_window(window, stream_);
}

void CudaBackend::attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                                const AttentionOutParams& p) {
  const ModelConfig& c = *layer.config;
  const Matrix& wo_a = p.weights->wo_a;
  const std::int64_t tokens = batch.num_tokens, row = c.num_attention_heads * c.head_dim,
                     z_cols = c.o_groups * c.o_lora_rank;
  const Products path = products(tokens);
  const bool raw_input = path != Products::kDecode;
  LinearInput in{static_cast<const std::uint16_t*>(p.o), nullptr, row};
  if (!raw_input && knobs.wo_a_act == ActQuant::kFp8 && wo_a.format == MatrixFormat::kFP8)
    in = operand(wo_a, ActQuant::kFp8, p.o, tokens, row, "o_values", "o_scales");
  auto* z = scratch_.get<std::uint16_t>("z", tokens * z_cols);
  // Group g: rows g * o_lora_rank of wo_a, heads of group g as input.
  const std::int64_t tiles = c.o_lora_rank / kTileRows * (wo_a.cols / kTileCols);
  std::vector<LinearJob> jobs;
  RawInput raw{p.o, row, knobs.wo_a_act};
  for (std::int64_t g = 0; g < c.o_groups; ++g) {
    LinearJob job;
    job.weights = wo_a;
    job.weights.rows = c.o_lora_rank;
    job.weights.codes = wo_a.codes + g * tiles * tile_code_bytes(wo_a.format);
    job.weights.scales = wo_a.scales + g * tiles * tile_scale_bytes(wo_a.format);
    job.input = {in.x + g * wo_a.cols, in.scales == nullptr ? nullptr : in.scales + g * (wo_a.cols / 128),
                 row};
    job.out = z + g * c.o_lora_rank;
    job.out_stride = z_cols;
    jobs.push_back(job);
    raw.column.push_back(g * wo_a.cols);
    if (!raw_input && (jobs.size() == kMaxJobs || g + 1 == c.o_groups)) {
      launch_linear(jobs, tokens, stream_);
      jobs.clear();
    }
  }
  const Matrix& wo_b = p.weights->wo_b;
  if (raw_input) {
    run_products(path, jobs, tokens, raw);
    return run_products(path, {{wo_b, {z, nullptr, z_cols}, p.out, c.hidden_size, true}}, tokens,
                        {z, z_cols, knobs.dense_act});
  }
  const LinearInput z_in = operand(wo_b, knobs.dense_act, z, tokens, z_cols, "z_values", "z_scales");
  const LinearJob out{wo_b, z_in, p.out, c.hidden_size, true};
  launch_linear({&out, 1}, tokens, stream_);
}

void CudaBackend::route(const LayerContext& layer, const Knobs&, const StepBatch& batch,
                        const RouteParams& p) {
  const ModelConfig& c = *layer.config;
  auto* z = scratch_.get<float>("router_logits", std::int64_t{batch.num_tokens} * c.n_routed_experts);
  const LinearJob job{p.weights->gate,
                      {static_cast<const std::uint16_t*>(p.x), nullptr, c.hidden_size},
                      z,
                      c.n_routed_experts,
                      false};
  run_products(products(batch.num_tokens), {job}, batch.num_tokens, {p.x, c.hidden_size, ActQuant::kBf16});
  RouteArguments a;
  a.tokens = batch.num_tokens;
  a.experts = static_cast<std::int32_t>(c.n_routed_experts);
  a.chosen = static_cast<std::int32_t>(c.num_experts_per_tok);
  a.normalize = c.norm_topk_prob;
  a.route_scale = static_cast<float>(c.routed_scaling_factor);
  a.logits = z;
  a.bias = p.weights->tid2eid.empty() ? p.weights->bias.data() : nullptr;
  a.table = p.weights->tid2eid.data();
  a.token_ids = batch.token_ids;
  a.ids = p.expert_ids;
  a.weights = p.expert_weights;
  a.margin = p.margin;
  launch_route(a, stream_);
}

void CudaBackend::logits(const Knobs&, const LogitsParams& p) {
  if (p.num_rows == 0) return;  // an empty grid is a launch error
  const LinearJob job{
      p.head, {static_cast<const std::uint16_t*>(p.x), nullptr, p.head.cols}, p.logits, p.head.rows, false};
  launch_linear({&job, 1}, p.num_rows, stream_);
}

Result<> CudaBackend::draw(const float* logits, std::int32_t vocab, std::span<const std::int32_t> rows,
                           std::span<const DrawParams> params, std::span<DrawResult> results) {
  PIVOT_CHECK(rows.size() == params.size() && rows.size() == results.size());
  if (rows.empty()) return {};
  const auto count = static_cast<std::int64_t>(rows.size());
  auto* device_rows = draw_scratch_.get<std::int32_t>("draw_rows", count);
  auto* device_params = draw_scratch_.get<DrawParams>("draw_params", count);
  upload(device_rows, rows.data(), count * static_cast<std::int64_t>(sizeof(std::int32_t)));
  upload(device_params, params.data(), count * static_cast<std::int64_t>(sizeof(DrawParams)));
  DrawArguments a;
  a.logits = logits;
  a.vocab = vocab;
  a.draws = static_cast<std::int32_t>(count);
  a.rows = device_rows;
  a.params = device_params;
  a.results = draw_scratch_.get<DrawResult>("draw_results", count);
  a.segments = draw_scratch_.get<DrawSegment>("draw_segments", count * draw_segments(vocab));
  const bool any_sorted = std::any_of(params.begin(), params.end(), [vocab](const DrawParams& p) {
    return p.temperature != 0.0f && draw_is_sorted(p, vocab);
  });
  if (any_sorted) {
    a.selected = draw_scratch_.get<std::int32_t>("draw_selected", count * kMaxSortedDraw);
    a.selected_count = draw_scratch_.get<std::int32_t>("draw_selected_count", count);
  }
  launch_draw(a, any_sorted, switches_.cluster_topk, stream_);
  PIVOT_TRY_VOID(check_cuda(
      cudaMemcpyAsync(results.data(), a.results, results.size_bytes(), cudaMemcpyDeviceToHost, stream_),
      "drawing"));
  return check_cuda(cudaStreamSynchronize(stream_), "drawing");
}

}  // namespace pivot::cuda
