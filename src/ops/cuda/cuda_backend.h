// The class behind make_cuda_backend; its operators are in backend.cpp, its making in make_backend.cpp.
#pragma once

#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/block_scaled/block_scaled.h"
#include "ops/cuda/embed/embed.h"
#include "ops/cuda/gemm/gemm.h"
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
#include "ops/cuda/runtime/pinned_staging.h"
#include "ops/cuda/runtime/scratch.h"
#include "ops/cuda/runtime/status.h"
#include "ops/cuda/runtime/step_graphs.h"
#include "ops/cuda/sampling/sampling.h"
#include "ops/cuda/support.h"
#include "ops/ops.h"

namespace pivot::cuda {

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
    PIVOT_TRY_VOID(
        check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
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
    select_device();
    void* memory = nullptr;
    const cudaError_t status =
        cudaMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (status == cudaSuccess) return static_cast<std::byte*>(memory);
    (void)cudaGetLastError();
    std::size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return fail(
        ErrorCode::kOutOfMemory,
        "{} needs {} bytes of GPU memory, {} of {} are free; reduce the context or the number of sequences",
        purpose, bytes, free_bytes, total_bytes);
  }
  void release(std::byte* memory) override {
    select_device();
    forget_rounding();
    require_cuda(cudaFree(memory), "releasing memory");
  }
  void fill(std::byte* memory, int value, std::int64_t bytes) override {
    select_device();
    settle_tail();
    forget_rounding();
    require_cuda(cudaMemsetAsync(memory, value, static_cast<std::size_t>(bytes), stream_), "filling memory");
  }
  void upload(void* device, const void* host, std::int64_t bytes) override {
    select_device();
    settle_tail();
    forget_rounding();
    host = staging_.stage(host, bytes, stream_);
    require_cuda(
        cudaMemcpyAsync(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_),
        "upload");
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    select_device();
    settle_tail();
    require_cuda(
        cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
        "download");
    require_cuda(cudaStreamSynchronize(stream_), "download");
  }
  Result<> synchronize() override {
    settle_tail();
    return check_cuda(cudaStreamSynchronize(stream_), "running the step");
  }
  Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> weights) override {
    select_device();
    for (const std::weak_ptr<PlacedModel>& weak : models_)
      if (const auto model = weak.lock(); model != nullptr && weights.get() == &model->weights())
        return weights;  // placed already
    PIVOT_TRY(const std::shared_ptr<PlacedModel> model, PlacedModel::create(*weights));
    return keep(model);
  }

  bool replays_steps() const override { return true; }
  std::uint64_t replayed_steps() const override { return graphs_->replays(); }
  void run_step(const StepKey& key, const std::function<void()>& record) override {
    select_device();
    if (!switches_.graphs) return record();
    graphs_->run(key, scratch_.generation(), record);
  }
  // Graphs captured under other switches are dropped.
  void set_switches(const CudaSwitches& switches) {
    switches_ = switches;
    overlap_allowed = switches.overlap;
    graphs_ = std::make_unique<StepGraphs>(stream_);
  }
  const CudaSwitches& switches() const { return switches_; }
  CudaProductPaths product_paths() const {
    return {has_gemm(properties_.major), has_block_scaled(properties_.major, properties_.minor)};
  }
  Result<std::shared_ptr<const ModelWeights>> synthesize(const ModelConfig& config,
                                                         std::int64_t resident_experts) {
    PIVOT_TRY(const std::shared_ptr<PlacedModel> model,
              PlacedModel::synthesize(config, resident_experts, stream_));
    return keep(model);
  }
  Result<std::vector<CudaKernelTime>> kernel_times();
  Result<> draw(const float* logits, std::int32_t vocab, std::span<const std::int32_t> rows,
                std::span<const DrawParams> params, std::span<DrawResult> results);
  void synthesize_rows(const PagedView& pages, std::int64_t count, std::uint32_t seed) {
    launch_random_rows(pages.base, pages.page_bytes, count, pages.page_rows, pages.layout, seed, stream_);
  }
  void synthesize_rows(const RingView& ring, std::int64_t slots, std::uint32_t seed) {
    launch_random_rows(ring.base, ring.slot_bytes, slots, ring.rows, ring.layout, seed, stream_);
  }
  void synthesize_state(const CompressorStateView& state, std::int64_t slots, std::uint32_t seed) {
    for (std::int64_t slot = 0; slot < slots; ++slot)
      launch_random_floats(state.base + slot * state.slot_floats, std::int64_t{2} * state.rows * state.width,
                           0.0f, 1.0f, seed + static_cast<std::uint32_t>(slot), stream_);
  }
  double read_bandwidth(const ModelConfig& config) {
    const PlacedModel& model = placed(config);
    return measure_read_bandwidth(model.memory(), model.bytes(), properties_.multiProcessorCount, stream_);
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override {
    launch_embed(p.embed.codes, batch.token_ids, batch.num_tokens, p.num_streams, p.embed.cols, p.h, stream_);
  }
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const HcSeamParams& p) override;
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override;
  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override;
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override;
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override;
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override;
  void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const AttentionOutParams& p) override;
  void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const RouteParams& p) override;
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override;
  void logits(const Knobs& knobs, const LogitsParams& p) override;

 private:
  // The placed model whose config a layer names: one back-end may hold several.
  const PlacedModel& placed(const ModelConfig& config) {
    for (const std::weak_ptr<PlacedModel>& weak : models_)
      if (const std::shared_ptr<PlacedModel> model = weak.lock();
          model != nullptr && &model->weights().config == &config)
        return *model;
    PIVOT_CHECK(false, "the layer's config is not that of a model placed on this device");
  }
  const float* frequencies(const LayerContext& layer) {
    const PlacedModel& model = placed(*layer.config);
    return layer.ratio == 0 ? model.rope_main() : model.rope_compress();
  }
  // The operand of a quantised linear with input x [tokens][cols]: FP8 code values where the knob says so and
  // the weights are quantised, else x itself.
  LinearInput operand(const Matrix& w, ActQuant act, const void* x, std::int64_t tokens, std::int64_t cols,
                      const char* name, const char* scales_name) {
    const auto* raw = static_cast<const std::uint16_t*>(x);
    if (act != ActQuant::kFp8 || w.format == MatrixFormat::kBF16) return {raw, nullptr, cols};
    if (x == rounded_of_ && cols == rounded_cols_) return {rounded_values_, rounded_scales_, cols};
    auto* values = scratch_.get<std::uint16_t>(name, tokens * cols);
    auto* scales = scratch_.get<float>(scales_name, tokens * cols / 128);
    launch_quantize_fp8(x, tokens, cols, cols, values, scales, stream_);
    return {values, scales, cols};
  }
  // Which kernels the linear layers of a step take.
  enum class Products : std::uint8_t { kDecode, kWgmma, kBlockScaled };
  // Steps that are replayed as graphs keep the decode kernels where long ones have wgmma, and with them one
  // order of sums. Block-scaled products have one order for all steps, and take all of them.
  Products products(std::int64_t tokens) const {
    if (switches_.block_scaled && has_block_scaled(properties_.major, properties_.minor))
      return Products::kBlockScaled;
    return switches_.wgmma && has_gemm(properties_.major) && tokens > kMaxGraphTokens ? Products::kWgmma
                                                                                      : Products::kDecode;
  }
  // The raw activation behind the jobs of a launch: BF16 [T][stride], job i reading columns from column[i]
  // on.
  struct RawInput {
    const void* x = nullptr;
    std::int64_t stride = 0;
    ActQuant act = ActQuant::kBf16;         // of quantised weights
    std::vector<std::int64_t> column = {};  // empty: all 0
  };
  // What launch_linear would compute from the raw activation, through gemm/ or block_scaled/ where these take
  // the job.
  void run_products(Products path, const std::vector<LinearJob>& jobs, std::int64_t tokens,
                    const RawInput& raw);
  void run_gemm(const std::vector<LinearJob>& jobs, std::int64_t tokens, const RawInput& raw);
  void run_block_scaled(const std::vector<LinearJob>& jobs, std::int64_t tokens, const RawInput& raw);
  // The jobs of `raw` for which `taken` is false, through the decode kernels.
  template <class Taken>
  void run_rest(const std::vector<LinearJob>& jobs, std::int64_t tokens, const RawInput& raw,
                const Taken& taken);
  void moe_gemm(ExpertArguments& a, const MoeWeights& w, const Knobs& knobs, const MoeParams& p);
  void moe_block_scaled(ExpertArguments& a, const MoeWeights& w, const Knobs& knobs, const MoeParams& p);
  SeamArguments seam(const ModelConfig& config, const Knobs& knobs, std::int64_t tokens);
  std::shared_ptr<const ModelWeights> keep(const std::shared_ptr<PlacedModel>& model) {
    std::erase_if(models_, [](const std::weak_ptr<PlacedModel>& weak) { return weak.expired(); });
    models_.push_back(model);
    return {model, &model->weights()};
  }
  // The device is a property of the thread: a server's loop thread is not the one that made the back-end.
  void select_device() const { require_cuda(cudaSetDevice(device_), "selecting the GPU"); }

  // What the last seam left is done here if no kernel has taken it along.
  void settle_tail() {
    if (tail_.tokens > 0) launch_seam_tail(tail_, stream_);
    tail_ = {};
  }

  // The caller wrote memory that may be the activation whose rounding is kept, or hand its address out again.
  void forget_rounding() { rounded_of_ = nullptr; }

  SeamTail tail_;
  int device_;
  cudaDeviceProp properties_;
  cudaStream_t stream_ = nullptr;
  CudaSwitches switches_;
  std::vector<std::weak_ptr<PlacedModel>> models_;  // owned by whoever holds their weights
  Scratch scratch_;
  Scratch draw_scratch_;  // no graph holds its addresses
  PinnedStaging staging_;
  std::unique_ptr<StepGraphs> graphs_;
  // The FP8 rounding of the last norm's output, made by the kernel that wrote it.
  const void* rounded_of_ = nullptr;
  std::int64_t rounded_cols_ = 0;
  std::uint16_t* rounded_values_ = nullptr;
  float* rounded_scales_ = nullptr;
};

}  // namespace pivot::cuda
