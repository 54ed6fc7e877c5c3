#include "ops/cuda/placement/placed_model.h"

#include <cuda_runtime.h>

#include "base/check.h"
#include "checkpoint/weight_shapes.h"
#include "ops/cuda/placement/placed_size.h"
#include "ops/cuda/placement/random_fill.h"
#include "ops/cuda/placement/tiles.h"
#include "ops/cuda/runtime/status.h"
#include "ops/rope.h"

namespace pivot::cuda {
PlacedModel::~PlacedModel() {
  if (memory_ != nullptr) cudaFree(memory_);
}

std::byte* PlacedModel::take(std::int64_t bytes) {
  PIVOT_CHECK(used_ + bytes <= capacity_, "{} + {} of {} bytes", used_, bytes, capacity_);
  std::byte* memory = memory_ + used_;
  used_ += aligned_bytes(bytes);
  return memory;
}

void PlacedModel::upload(std::byte* device, const void* host, std::int64_t bytes) {
  if (!status_ || bytes == 0) return;
  status_ = check_cuda(cudaMemcpy(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice),
                       "copying weights to the GPU");
}

Matrix PlacedModel::place(const Matrix& matrix) {
  const TiledSize size = tiled_size(matrix);
  if (synthetic_) {
    Matrix placed = matrix;
    std::byte* codes = take(size.code_bytes);
    std::byte* scales = take(size.scale_bytes);
    launch_random_tiles(matrix, codes, scales, seed_ += 2, stream_);
    placed.codes = codes;
    placed.scales = scales;
    return placed;
  }
  staging_codes_.resize(static_cast<std::size_t>(size.code_bytes));
  staging_scales_.resize(static_cast<std::size_t>(size.scale_bytes));
  tile_matrix(matrix, staging_codes_.data(), staging_scales_.data());
  Matrix placed = matrix;
  std::byte* codes = take(size.code_bytes);
  std::byte* scales = take(size.scale_bytes);
  upload(codes, staging_codes_.data(), size.code_bytes);
  upload(scales, staging_scales_.data(), size.scale_bytes);
  placed.codes = codes;
  placed.scales = scales;
  return placed;
}

Matrix PlacedModel::place_rows(const Matrix& matrix) {
  Matrix placed = matrix;
  std::byte* codes = take(matrix.code_bytes());
  if (synthetic_)
    launch_random_bf16(codes, matrix.rows * matrix.cols, 1.0f, seed_ += 2, stream_);
  else
    upload(codes, matrix.codes, matrix.code_bytes());
  placed.codes = codes;
  return placed;
}

FloatSpan PlacedModel::place(FloatSpan values, float mean, float spread) {
  std::byte* memory = take(static_cast<std::int64_t>(values.size()) * 4);
  if (synthetic_)
    launch_random_floats(reinterpret_cast<float*>(memory), static_cast<std::int64_t>(values.size()), mean,
                         spread, seed_ += 2, stream_);
  else
    upload(memory, values.data(), static_cast<std::int64_t>(values.size()) * 4);
  return {reinterpret_cast<const float*>(memory), values.size()};
}

void PlacedModel::place(HyperConnectionWeights& w) {
  w.fn = place(w.fn, 0.0f, 0.01f);
  w.base = place(w.base, 0.0f, 0.5f);
  w.scale = place(w.scale);
}

void PlacedModel::place(CompressorWeights& w) {
  w.wkv = place(w.wkv);
  w.wgate = place(w.wgate);
  w.ape = place(w.ape, 0.0f, 0.5f);
  w.norm = place(w.norm);
}

void PlacedModel::place(ExpertWeights& w) {
  w.w1 = place(w.w1);
  w.w3 = place(w.w3);
  w.w2 = place(w.w2);
}

void PlacedModel::place(LayerWeights& layer) {
  layer.attn_norm = place(layer.attn_norm);
  layer.ffn_norm = place(layer.ffn_norm);
  place(layer.attn_hc);
  place(layer.ffn_hc);
  AttentionWeights& a = layer.attn;
  for (Matrix* m : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b}) *m = place(*m);
  for (FloatSpan* v : {&a.q_norm, &a.kv_norm}) *v = place(*v);
  a.attn_sink = place(a.attn_sink, 0.0f, 1.0f);
  if (a.compressor) place(*a.compressor);
  if (a.indexer) {
    a.indexer->wq_b = place(a.indexer->wq_b);
    a.indexer->weights_proj = place(a.indexer->weights_proj);
    place(a.indexer->compressor);
  }
  MoeWeights& ffn = layer.ffn;
  ffn.gate = place(ffn.gate);
  ffn.bias = place(ffn.bias, 0.0f, 0.05f);
  std::byte* table = take(static_cast<std::int64_t>(ffn.tid2eid.size()) * 4);
  if (synthetic_ && !ffn.tid2eid.empty()) {
    const auto chosen = static_cast<std::int32_t>(weights_.config.num_experts_per_tok);
    launch_random_ids(reinterpret_cast<std::int32_t*>(table),
                      static_cast<std::int64_t>(ffn.tid2eid.size()) / chosen, chosen,
                      static_cast<std::int32_t>(ffn.experts.size()), seed_ += 2, stream_);
  } else if (!synthetic_) {
    upload(table, ffn.tid2eid.data(), static_cast<std::int64_t>(ffn.tid2eid.size()) * 4);
  }
  ffn.tid2eid = {reinterpret_cast<const std::int32_t*>(table), ffn.tid2eid.size()};
  std::vector<DeviceExpert> experts;
  for (std::size_t i = 0; i < ffn.experts.size(); ++i) {
    ExpertWeights& e = ffn.experts[i];
    if (const auto resident = static_cast<std::size_t>(resident_experts_); synthetic_ && i >= resident)
      e = ffn.experts[i % resident];
    else
      place(e);
    experts.push_back({e.w1, e.w3, e.w2});
  }
  place(ffn.shared);
  experts.push_back({ffn.shared.w1, ffn.shared.w3, ffn.shared.w2});
  std::byte* device_experts = take(static_cast<std::int64_t>(experts.size() * sizeof(DeviceExpert)));
  upload(device_experts, experts.data(), static_cast<std::int64_t>(experts.size() * sizeof(DeviceExpert)));
  experts_[&ffn] = reinterpret_cast<const DeviceExpert*>(device_experts);
}

Result<> PlacedModel::fill(const ModelWeights& source) {
  weights_ = source;
  weights_.storage.reset();
  weights_.mtp.reset();
  weights_.dspark.reset();
  weights_.embed = place_rows(source.embed);
  weights_.head = place(source.head);
  weights_.norm = place(source.norm);
  weights_.hc_head.fn = place(source.hc_head.fn, 0.0f, 0.01f);
  weights_.hc_head.base = place(source.hc_head.base, 0.0f, 0.5f);
  weights_.hc_head.scale = place(source.hc_head.scale);
  const auto rope = [&](const RopeConfig& config) {
    const std::vector<float> frequencies = rope_frequencies(config, source.config.qk_rope_head_dim);
    const auto bytes = static_cast<std::int64_t>(frequencies.size()) * 4;
    std::byte* memory = take(bytes);
    upload(memory, frequencies.data(), bytes);
    return reinterpret_cast<const float*>(memory);
  };
  rope_main_ = rope(source.config.rope_main);
  rope_compress_ = rope(source.config.rope_compress);
  for (LayerWeights& layer : weights_.layers) place(layer);
  return status_;
}

Result<> PlacedModel::allocate(std::int64_t bytes) {
  capacity_ = bytes;
  std::size_t free_bytes = 0, total_bytes = 0;
  PIVOT_TRY_VOID(check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the GPU's free memory"));
  if (capacity_ > static_cast<std::int64_t>(free_bytes))
    return fail(ErrorCode::kOutOfMemory,
                "the weights need {} bytes of GPU memory and {} of {} are free ({} are missing); nothing was "
                "loaded. Free the memory that other "
                "processes hold, or plan a layout over more GPUs with `pivot plan`",
                capacity_, free_bytes, total_bytes, capacity_ - static_cast<std::int64_t>(free_bytes));
  void* memory = nullptr;
  PIVOT_TRY_VOID(
      check_cuda(cudaMalloc(&memory, static_cast<std::size_t>(capacity_)), "allocating the weights"));
  memory_ = static_cast<std::byte*>(memory);
  return {};
}

Result<std::shared_ptr<PlacedModel>> PlacedModel::create(const ModelWeights& weights) {
  PIVOT_TRY_VOID(check_placeable(weights));
  std::shared_ptr<PlacedModel> placed(new PlacedModel());
  PIVOT_TRY_VOID(placed->allocate(placed_bytes(weights)));
  PIVOT_TRY_VOID(placed->fill(weights));
  return placed;
}

Result<std::shared_ptr<PlacedModel>> PlacedModel::synthesize(const ModelConfig& config,
                                                             std::int64_t resident_experts,
                                                             cudaStream_t stream) {
  if (resident_experts < 1 || resident_experts > config.n_routed_experts)
    return fail(ErrorCode::kInvalidArgument, "{} resident experts of {} a layer are not possible",
                resident_experts, config.n_routed_experts);
  const ModelWeights shapes = shape_weights(config);
  PIVOT_TRY_VOID(check_placeable(shapes));
  std::shared_ptr<PlacedModel> placed(new PlacedModel());
  placed->synthetic_ = true;
  placed->resident_experts_ = resident_experts;
  placed->stream_ = stream;
  PIVOT_TRY_VOID(placed->allocate(placed_bytes(shapes, resident_experts)));
  PIVOT_TRY_VOID(placed->fill(shapes));
  PIVOT_TRY_VOID(check_cuda(cudaStreamSynchronize(stream), "filling the weights"));
  return placed;
}

}  // namespace pivot::cuda
