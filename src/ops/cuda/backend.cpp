#include "ops/cuda/backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/embed/embed.h"
#include "ops/cuda/hyper_connection/hyper_connection.h"
#include "ops/cuda/indexer/indexer.h"
#include "ops/cuda/latent/latent.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/placement/placed_model.h"
#include "ops/cuda/placement/placed_size.h"
#include "ops/cuda/placement/random_fill.h"
#include "ops/cuda/placement/schedule.h"
#include "ops/cuda/placement/tiles.h"
#include "ops/cuda/query/query.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/runtime/scratch.h"
#include "ops/cuda/runtime/pinned_staging.h"
#include "ops/cuda/runtime/status.h"
#include "ops/cuda/support.h"
#include "ops/cuda/runtime/step_graphs.h"

namespace pivot {
namespace {

using namespace cuda;

float inverse_sqrt(std::int64_t n) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n))); }

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const cudaDeviceProp& properties) : device_(device), properties_(properties) {}
  ~CudaBackend() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    graphs_.reset();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Result<> open() {
    PIVOT_TRY_VOID(check_cuda(cudaSetDevice(device_), "selecting the GPU"));
    PIVOT_TRY_VOID(check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
    PIVOT_TRY_VOID(staging_.open());
    graphs_ = std::make_unique<StepGraphs>(stream_);
    return {};
  }

  std::string_view name() const override { return "cuda"; }
  DeviceInfo device() const override {
    std::size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) free_bytes = 0;
    return {properties_.name, static_cast<std::int64_t>(free_bytes)};
  }
  int activation_bytes() const override { return 2; }
  Result<> supports(const ModelWeights& weights, const Knobs& knobs) const override {
    return check_support(weights, knobs);
  }

  Result<std::byte*> allocate(std::int64_t bytes, std::string_view purpose) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (status == cudaSuccess) return static_cast<std::byte*>(memory);
    (void)cudaGetLastError();
    std::size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return fail(ErrorCode::kOutOfMemory, "{} needs {} bytes of GPU memory, {} of {} are free; reduce the context or the number of sequences", purpose, bytes,
                free_bytes, total_bytes);
  }
  void release(std::byte* memory) override {
    forget_rounding();
    require_cuda(cudaFree(memory), "releasing memory");
  }
  void fill(std::byte* memory, int value, std::int64_t bytes) override {
    forget_rounding();
    require_cuda(cudaMemsetAsync(memory, value, static_cast<std::size_t>(bytes), stream_), "filling memory");
  }
  void upload(void* device, const void* host, std::int64_t bytes) override {
    forget_rounding();
    host = staging_.stage(host, bytes, stream_);
    require_cuda(cudaMemcpyAsync(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_), "upload");
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    require_cuda(cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_), "download");
    require_cuda(cudaStreamSynchronize(stream_), "download");
  }
  Result<> synchronize() override { return check_cuda(cudaStreamSynchronize(stream_), "running the step"); }
  Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> weights) override {
    for (const std::weak_ptr<PlacedModel>& weak : models_)
      if (const auto model = weak.lock(); model != nullptr && weights.get() == &model->weights()) return weights;  // placed already
    PIVOT_TRY(const std::shared_ptr<PlacedModel> model, PlacedModel::create(*weights));
    return keep(model);
  }

  bool replays_steps() const override { return true; }
  void run_step(const StepKey& key, const std::function<void()>& record) override { graphs_->run(key, scratch_.generation(), record); }
  Result<std::shared_ptr<const ModelWeights>> synthesize(const ModelConfig& config, std::int64_t resident_experts) {
    PIVOT_TRY(const std::shared_ptr<PlacedModel> model, PlacedModel::synthesize(config, resident_experts, stream_));
    return keep(model);
  }
  void synthesize_rows(const PagedView& pages, std::int64_t count, std::uint32_t seed) {
    launch_random_rows(pages.base, pages.page_bytes, count, pages.page_rows, pages.layout, seed, stream_);
  }
  void synthesize_rows(const RingView& ring, std::int64_t slots, std::uint32_t seed) {
    launch_random_rows(ring.base, ring.slot_bytes, slots, ring.rows, ring.layout, seed, stream_);
  }
  void synthesize_state(const CompressorStateView& state, std::int64_t slots, std::uint32_t seed) {
    for (std::int64_t slot = 0; slot < slots; ++slot)
      launch_random_floats(state.base + slot * state.slot_floats, std::int64_t{2} * state.rows * state.width, 0.0f, 1.0f,
                           seed + static_cast<std::uint32_t>(slot), stream_);
  }
  double read_bandwidth(const ModelConfig& config) {
    const PlacedModel& model = placed(config);
    return measure_read_bandwidth(model.memory(), model.bytes(), properties_.multiProcessorCount, stream_);
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override {
    launch_embed(p.embed.codes, batch.token_ids, batch.num_tokens, p.num_streams, p.embed.cols, p.h, stream_);
  }
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const HcSeamParams& p) override;
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch, const HcHeadParams& p) override;
  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const LatentParams& p) override;
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const QueryParams& p) override;
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const IndexSelectParams& p) override;
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const AttentionParams& p) override;
  void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const AttentionOutParams& p) override;
  void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const RouteParams& p) override;
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const MoeParams& p) override;
  void logits(const Knobs& knobs, const LogitsParams& p) override;

 private:
  // The placed model whose config a layer names: one back-end may hold several.
  const PlacedModel& placed(const ModelConfig& config) {
    for (const std::weak_ptr<PlacedModel>& weak : models_)
      if (const std::shared_ptr<PlacedModel> model = weak.lock(); model != nullptr && &model->weights().config == &config) return *model;
    PIVOT_CHECK(false, "the layer's config is not that of a model placed on this device");
  }
  const float* frequencies(const LayerContext& layer) {
    const PlacedModel& model = placed(*layer.config);
    return layer.ratio == 0 ? model.rope_main() : model.rope_compress();
  }
  // The operand of a quantised linear with input x [tokens][cols]: FP8 code values where the knob says so and the weights
  // are quantised, else x itself.
  LinearInput operand(const Matrix& w, ActQuant act, const void* x, std::int64_t tokens, std::int64_t cols, const char* name, const char* scales_name) {
    const auto* raw = static_cast<const std::uint16_t*>(x);
    if (act != ActQuant::kFp8 || w.format == MatrixFormat::kBF16) return {raw, nullptr, cols};
    if (x == rounded_of_ && cols == rounded_cols_) return {rounded_values_, rounded_scales_, cols};
    auto* values = scratch_.get<std::uint16_t>(name, tokens * cols);
    auto* scales = scratch_.get<float>(scales_name, tokens * cols / 128);
    launch_quantize_fp8(x, tokens, cols, cols, values, scales, stream_);
    return {values, scales, cols};
  }
  SeamArguments seam(const ModelConfig& config, const Knobs& knobs, std::int64_t tokens);
  std::shared_ptr<const ModelWeights> keep(const std::shared_ptr<PlacedModel>& model) {
    std::erase_if(models_, [](const std::weak_ptr<PlacedModel>& weak) { return weak.expired(); });
    models_.push_back(model);
    return {model, &model->weights()};
  }
  // The caller wrote memory that may be the activation whose rounding is kept, or hand its address out again.
  void forget_rounding() { rounded_of_ = nullptr; }

  int device_;
  cudaDeviceProp properties_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::weak_ptr<PlacedModel>> models_;  // owned by whoever holds their weights
  Scratch scratch_;
  PinnedStaging staging_;
  std::unique_ptr<StepGraphs> graphs_;
  // The FP8 rounding of the last norm's output, made by the kernel that wrote it.
  const void* rounded_of_ = nullptr;
  std::int64_t rounded_cols_ = 0;
  std::uint16_t* rounded_values_ = nullptr;
  float* rounded_scales_ = nullptr;
};

SeamArguments CudaBackend::seam(const ModelConfig& config, const Knobs& knobs, std::int64_t tokens) {
  SeamArguments a;
  a.shape = {static_cast<std::int32_t>(config.hidden_size), static_cast<std::int32_t>(config.hc_sinkhorn_iters), static_cast<float>(config.hc_eps),
             static_cast<float>(config.rms_norm_eps)};
  a.precision = knobs.mhc == HcPrecision::kF32 ? HyperPrecision::kF32 : knobs.mhc == HcPrecision::kTf32 ? HyperPrecision::kTf32 : HyperPrecision::kBf16;
  a.partials = scratch_.get<float>("hc_partials", seam_partial_floats(tokens, config.hidden_size));
  return a;
}

void CudaBackend::hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const HcSeamParams& p) {
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
  a.x_values = rounded_values_ = scratch_.get<std::uint16_t>("x_values", batch.num_tokens * width);
  a.x_scales = rounded_scales_ = scratch_.get<float>("x_scales", batch.num_tokens * width / 128);
  launch_seam(a, batch.num_tokens, stream_);
  rounded_of_ = p.x;
  rounded_cols_ = width;
}

void CudaBackend::hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch, const HcHeadParams& p) {
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

void CudaBackend::latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const LatentParams& p) {
  const ModelConfig& c = *layer.config;
  const AttentionWeights& w = *p.weights;
  const std::int64_t tokens = batch.num_tokens;
  const LinearInput quantized = operand(w.wq_a, knobs.dense_act, p.x, tokens, c.hidden_size, "latent_values", "latent_scales");
  const LinearInput raw{static_cast<const std::uint16_t*>(p.x), nullptr, c.hidden_size};
  auto* a = scratch_.get<std::uint16_t>("latent_a", tokens * c.q_lora_rank);
  auto* kv = scratch_.get<std::uint16_t>("latent_kv", tokens * c.head_dim);
  std::vector<LinearJob> jobs = {{w.wq_a, w.wq_a.format == MatrixFormat::kBF16 ? raw : quantized, a, c.q_lora_rank, true},
                                 {w.wkv, w.wkv.format == MatrixFormat::kBF16 ? raw : quantized, kv, c.head_dim, true}};
  const auto compress_jobs = [&](const CompressorWeights& cw, const char* k_name, const char* s_name, float*& k, float*& s) {
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
  launch_linear(jobs, tokens, stream_);

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
  l.index_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_head_dim)) / std::sqrt(static_cast<double>(c.index_n_heads)));
  l.q_norm = w.q_norm.data();
  l.kv_norm = w.kv_norm.data();
  l.qr = p.qr;
  l.qr_values = scratch_.get<std::uint16_t>("qr_values", tokens * c.q_lora_rank);
  l.qr_scales = scratch_.get<float>("qr_scales", tokens * c.q_lora_rank / 128);
  l.kv = p.kv;
  l.round_kv = knobs.kv == KvPrecision::kFp8;
  l.kv_scales = p.kv_scales;
  l.index_weights = index_raw == nullptr ? nullptr : p.index_weights;
  launch_latent(l, stream_);
  rounded_of_ = p.qr;
  rounded_cols_ = c.q_lora_rank;
  rounded_values_ = l.qr_values;
  rounded_scales_ = l.qr_scales;

  if (layer.ratio == 0) return;
  CompressArguments m;
  m.batch = batch;
  m.eps = l.eps;
  m.frequencies = l.frequencies;
  m.ratio = layer.ratio;
  m.width = static_cast<std::int32_t>(w.compressor->width);
  m.rope = l.rope;
  m.k = k;
  m.score = s;
  m.ape = w.compressor->ape.data();
  m.norm = w.compressor->norm.data();
  m.state = p.cache.compressor;
  m.out = p.cache.compressed;
  m.round_kv = l.round_kv;
  launch_compress(m, stream_);
  if (layer.ratio != 4) return;
  const CompressorWeights& ic = w.indexer->compressor;
  m.width = static_cast<std::int32_t>(ic.width);
  m.k = index_k;
  m.score = index_s;
  m.ape = ic.ape.data();
  m.norm = ic.norm.data();
  m.state = p.cache.index_compressor;
  m.out = p.cache.index_keys;
  m.index_key = true;
  m.index_rounding = knobs.index_keys == IndexPrecision::kFp4   ? IndexRounding::kFp4
                     : knobs.index_keys == IndexPrecision::kFp8 ? IndexRounding::kFp8
                                                                : IndexRounding::kNone;
  launch_compress(m, stream_);
}

void CudaBackend::query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const QueryParams& p) {
  const ModelConfig& c = *layer.config;
  const AttentionWeights& w = *p.weights;
  const LinearInput in = operand(w.wq_b, knobs.dense_act, p.qr, batch.num_tokens, c.q_lora_rank, "query_values", "query_scales");
  std::vector<LinearJob> jobs = {{w.wq_b, in, p.q, c.num_attention_heads * c.head_dim, true}};
  const bool indexed = layer.ratio == 4 && p.index_q != nullptr;
  if (indexed) {
    const Matrix& m = w.indexer->wq_b;
    jobs.push_back({m, operand(m, knobs.dense_act, p.qr, batch.num_tokens, c.q_lora_rank, "query_values", "query_scales"), p.index_q, m.rows, true});
  }
  launch_linear(jobs, batch.num_tokens, stream_);
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
  q.index_rounding = knobs.index_keys == IndexPrecision::kFp4   ? IndexRounding::kFp4
                     : knobs.index_keys == IndexPrecision::kFp8 ? IndexRounding::kFp8
                                                                : IndexRounding::kNone;
  launch_query(q, stream_);
}

void CudaBackend::index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const IndexSelectParams& p) {
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
  for (std::int64_t first = 0; first < batch.num_tokens; first += slice) {
    IndexArguments part = a;
    part.batch.num_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(slice, batch.num_tokens - first));
    part.batch.positions = batch.positions + first;
    part.batch.span_of = batch.span_of + first;
    part.index_q = static_cast<const std::uint16_t*>(p.index_q) + first * c.index_n_heads * c.index_head_dim;
    part.index_weights = p.index_weights + first * c.index_n_heads;
    part.selected = p.selected + first * p.topk;
    part.count = p.count + first;
    launch_index_scores(part, properties_.multiProcessorCount, stream_);
    launch_topk(part, stream_);
  }
}

void CudaBackend::attention(const LayerContext& layer, const Knobs&, const StepBatch& batch, const AttentionParams& p) {
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
  std::int64_t keys = c.sliding_window;
  if (layer.ratio != 0)
    keys += p.selected != nullptr ? p.topk : std::int64_t{p.cache.compressed.table_stride} * p.cache.compressed.page_rows;
  a.splits = attention_splits(batch.num_tokens, a.heads, keys, properties_.multiProcessorCount);
  const std::int64_t parts = std::int64_t{batch.num_tokens} * a.splits * a.heads;
  a.partial_o = scratch_.get<float>("attention_o", parts * a.head_dim);
  a.partial_ml = scratch_.get<float>("attention_ml", parts * 2);
  a.o = p.o;
  launch_attention(a, stream_);
  launch_commit_window(batch, p.kv, p.kv_scales, p.cache.window, stream_);
}

void CudaBackend::attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const AttentionOutParams& p) {
  const ModelConfig& c = *layer.config;
  const Matrix& wo_a = p.weights->wo_a;
  const std::int64_t tokens = batch.num_tokens, row = c.num_attention_heads * c.head_dim, z_cols = c.o_groups * c.o_lora_rank;
  LinearInput in{static_cast<const std::uint16_t*>(p.o), nullptr, row};
  if (knobs.wo_a_act == ActQuant::kFp8 && wo_a.format == MatrixFormat::kFP8) {
    auto* values = scratch_.get<std::uint16_t>("o_values", tokens * row);
    auto* scales = scratch_.get<float>("o_scales", tokens * row / 128);
    launch_quantize_fp8(p.o, tokens, row, row, values, scales, stream_);
    in = {values, scales, row};
  }
  auto* z = scratch_.get<std::uint16_t>("z", tokens * z_cols);
  // Group g: rows g * o_lora_rank of wo_a, heads of group g as input.
  const std::int64_t tiles = c.o_lora_rank / kTileRows * (wo_a.cols / kTileCols);
  std::vector<LinearJob> jobs;
  for (std::int64_t g = 0; g < c.o_groups; ++g) {
    LinearJob job;
    job.weights = wo_a;
    job.weights.rows = c.o_lora_rank;
    job.weights.codes = wo_a.codes + g * tiles * tile_code_bytes(wo_a.format);
    job.weights.scales = wo_a.scales + g * tiles * tile_scale_bytes(wo_a.format);
    job.input = {in.x + g * wo_a.cols, in.scales == nullptr ? nullptr : in.scales + g * (wo_a.cols / 128), row};
    job.out = z + g * c.o_lora_rank;
    job.out_stride = z_cols;
    jobs.push_back(job);
    if (jobs.size() == kMaxJobs || g + 1 == c.o_groups) {
      launch_linear(jobs, tokens, stream_);
      jobs.clear();
    }
  }
  const LinearInput z_in = operand(p.weights->wo_b, knobs.dense_act, z, tokens, z_cols, "z_values", "z_scales");
  const LinearJob out{p.weights->wo_b, z_in, p.out, c.hidden_size, true};
  launch_linear({&out, 1}, tokens, stream_);
}

void CudaBackend::route(const LayerContext& layer, const Knobs&, const StepBatch& batch, const RouteParams& p) {
  const ModelConfig& c = *layer.config;
  auto* z = scratch_.get<float>("router_logits", std::int64_t{batch.num_tokens} * c.n_routed_experts);
  const LinearJob job{p.weights->gate, {static_cast<const std::uint16_t*>(p.x), nullptr, c.hidden_size}, z, c.n_routed_experts, false};
  launch_linear({&job, 1}, batch.num_tokens, stream_);
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

void CudaBackend::moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch, const MoeParams& p) {
  const ModelConfig& c = *layer.config;
  const MoeWeights& w = *p.weights;
  const std::int64_t tokens = batch.num_tokens, pairs = tokens * c.num_experts_per_tok, rows = pairs + tokens;
  ExpertArguments a;
  a.tokens = batch.num_tokens;
  a.chosen = static_cast<std::int32_t>(c.num_experts_per_tok);
  a.width = static_cast<std::int32_t>(c.hidden_size);
  a.inner = static_cast<std::int32_t>(c.moe_intermediate_size);
  a.limit = static_cast<float>(c.swiglu_limit);
  a.routed_format = w.experts.front().w1.format;
  a.shared_format = w.shared.w1.format;
  a.list.slots = static_cast<std::int32_t>(std::min<std::int64_t>(pairs, c.n_routed_experts));
  a.list.expert = scratch_.get<std::int32_t>("list_expert", a.list.slots);
  a.list.first = scratch_.get<std::int32_t>("list_first", a.list.slots + 1);
  a.list.count = scratch_.get<std::int32_t>("list_count", a.list.slots + 1);
  a.list.weights = scratch_.get<DeviceExpert>("list_weights", a.list.slots + 1);
  a.list.pairs = scratch_.get<std::int32_t>("list_pairs", pairs);
  a.list.tokens = scratch_.get<std::int32_t>("list_tokens", pairs);
  a.list.place = scratch_.get<std::int32_t>("list_place", pairs);
  launch_work_list(p.expert_ids, a.tokens, a.chosen, static_cast<std::int32_t>(c.n_routed_experts), placed(*layer.config).experts(w), a.list, stream_);
  a.route_weights = p.expert_weights;
  a.hidden = scratch_.get<std::uint16_t>("expert_hidden", rows * a.inner);
  a.partial = scratch_.get<std::uint16_t>("expert_partial", rows * a.width);
  a.out = p.out;

  const LinearInput shared = operand(w.shared.w1, knobs.dense_act, p.x, tokens, c.hidden_size, "moe_values", "moe_scales");
  a.shared_x = shared.x;
  a.shared_scales = shared.scales;
  const bool routed_quantized = a.routed_format != MatrixFormat::kBF16;
  if (knobs.expert_act == ActQuant::kNvfp4) {
    auto* values = scratch_.get<std::uint16_t>("expert_x", pairs * a.width);
    launch_expert_nvfp4(a, p.x, false, a.width, false, values, stream_);
    a.routed_x = values;
    a.routed_rows_per_place = true;
  } else {
    const LinearInput routed = operand(w.experts.front().w1, knobs.expert_act, p.x, tokens, c.hidden_size, "moe_values", "moe_scales");
    a.routed_x = routed.x;
    a.routed_scales = routed.scales;
  }
  launch_expert_up(a, stream_);

  const auto* hidden = static_cast<const std::uint16_t*>(a.hidden);
  a.routed_v = hidden;
  a.shared_v = hidden + pairs * a.inner;
  const bool routed_fp8 = routed_quantized && knobs.expert_act == ActQuant::kFp8;
  const bool shared_fp8 = w.shared.w2.format != MatrixFormat::kBF16 && knobs.dense_act == ActQuant::kFp8;
  if (routed_fp8 || shared_fp8) {
    auto* values = scratch_.get<std::uint16_t>("expert_v", rows * a.inner);
    auto* scales = scratch_.get<float>("expert_v_scales", rows * a.inner / 128);
    launch_quantize_fp8(a.hidden, rows, a.inner, a.inner, values, scales, stream_);
    if (routed_fp8) {
      a.routed_v = values;
      a.routed_v_scales = scales;
    }
    if (shared_fp8) {
      a.shared_v = values + pairs * a.inner;
      a.shared_v_scales = scales + pairs * a.inner / 128;
    }
  }
  if (knobs.expert_act == ActQuant::kNvfp4) {
    auto* values = scratch_.get<std::uint16_t>("expert_v4", pairs * a.inner);
    launch_expert_nvfp4(a, a.hidden, true, a.inner, true, values, stream_);
    a.routed_v = values;
    a.routed_v_scales = nullptr;
  }
  launch_expert_down(a, stream_);
}

void CudaBackend::logits(const Knobs&, const LogitsParams& p) {
  if (p.num_rows == 0) return;  // an empty grid is a launch error
  const LinearJob job{p.head, {static_cast<const std::uint16_t*>(p.x), nullptr, p.head.cols}, p.logits, p.head.rows, false};
  launch_linear({&job, 1}, p.num_rows, stream_);
}

}  // namespace

namespace {
CudaBackend& as_cuda(Backend& backend) {
  auto* cuda = dynamic_cast<CudaBackend*>(&backend);
  PIVOT_CHECK(cuda != nullptr, "{} is not the CUDA back-end", backend.name());
  return *cuda;
}
}  // namespace

Result<std::shared_ptr<const ModelWeights>> synthesize_cuda_weights(Backend& backend, const ModelConfig& config, std::int64_t resident_experts) {
  return as_cuda(backend).synthesize(config, resident_experts);
}

void synthesize_cuda_cache(Backend& backend, std::span<const LayerCacheView> layers, std::int64_t slots, std::int64_t ratio4_pages, std::int64_t ratio128_pages) {
  CudaBackend& cuda = as_cuda(backend);
  std::uint32_t seed = 1;
  for (const LayerCacheView& layer : layers) {
    cuda.synthesize_rows(layer.window, slots, seed += 1000);
    if (layer.compressed.base == nullptr) continue;
    const bool indexed = layer.index_keys.base != nullptr;
    const std::int64_t pages = indexed ? ratio4_pages : ratio128_pages;
    cuda.synthesize_rows(layer.compressed, pages, seed += 1000);
    cuda.synthesize_state(layer.compressor, slots, seed += 1000);
    if (!indexed) continue;
    cuda.synthesize_rows(layer.index_keys, pages, seed += 1000);
    cuda.synthesize_state(layer.index_compressor, slots, seed += 1000);
  }
}

double cuda_read_bandwidth(Backend& backend, const ModelWeights& weights) { return as_cuda(backend).read_bandwidth(weights.config); }

Result<std::shared_ptr<Backend>> make_cuda_backend(int device) {
  int count = 0;
  PIVOT_TRY_VOID(check_cuda(cudaGetDeviceCount(&count), "looking for a GPU"));
  if (device < 0 || device >= count)
    return fail(ErrorCode::kNotFound, "cuda:{} was asked for; this machine has {} GPU{}", device, count, count == 1 ? "" : "s");
  cudaDeviceProp properties{};
  PIVOT_TRY_VOID(check_cuda(cudaGetDeviceProperties(&properties, device), "reading the GPU's properties"));
  if (!(properties.major == 9 && properties.minor == 0) && !(properties.major == 12 && properties.minor == 0))
    return fail(ErrorCode::kUnsupported, "{} has compute capability {}.{}; this build has code for 9.0 (sm_90a) and 12.0 (sm_120a)", properties.name,
                properties.major, properties.minor);
  auto backend = std::make_shared<CudaBackend>(device, properties);
  PIVOT_TRY_VOID(backend->open());
  return std::shared_ptr<Backend>(std::move(backend));
}

}  // namespace pivot
