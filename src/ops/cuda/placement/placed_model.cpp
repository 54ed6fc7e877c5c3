#include "ops/cuda/placement/placed_model.h"

#include <cuda_runtime.h>

#include <cstring>

#include "base/check.h"
#include "ops/cuda/placement/tiles.h"
#include "ops/cuda/runtime/status.h"
#include "ops/rope.h"

namespace pivot::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::int64_t matrix_bytes(const Matrix& m) {
  const TiledSize size = tiled_size(m);
  return aligned(size.code_bytes) + aligned(size.scale_bytes);
}
std::int64_t vector_bytes(FloatSpan v) { return aligned(static_cast<std::int64_t>(v.size()) * 4); }
std::int64_t bytes_of(const HyperConnectionWeights& w) { return vector_bytes(w.fn) + vector_bytes(w.base) + vector_bytes(w.scale); }
std::int64_t bytes_of(const CompressorWeights& w) { return matrix_bytes(w.wkv) + matrix_bytes(w.wgate) + vector_bytes(w.ape) + vector_bytes(w.norm); }
std::int64_t bytes_of(const ExpertWeights& w) { return matrix_bytes(w.w1) + matrix_bytes(w.w3) + matrix_bytes(w.w2); }

std::int64_t bytes_of(const LayerWeights& layer) {
  const AttentionWeights& a = layer.attn;
  std::int64_t bytes = vector_bytes(layer.attn_norm) + vector_bytes(layer.ffn_norm) + bytes_of(layer.attn_hc) + bytes_of(layer.ffn_hc);
  for (const Matrix* m : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &layer.ffn.gate}) bytes += matrix_bytes(*m);
  for (const FloatSpan v : {a.q_norm, a.kv_norm, a.attn_sink, layer.ffn.bias}) bytes += vector_bytes(v);
  if (a.compressor) bytes += bytes_of(*a.compressor);
  if (a.indexer) bytes += matrix_bytes(a.indexer->wq_b) + matrix_bytes(a.indexer->weights_proj) + bytes_of(a.indexer->compressor);
  bytes += aligned(static_cast<std::int64_t>(layer.ffn.tid2eid.size()) * 4);
  for (const ExpertWeights& e : layer.ffn.experts) bytes += bytes_of(e);
  bytes += bytes_of(layer.ffn.shared) + aligned(static_cast<std::int64_t>(layer.ffn.experts.size() * sizeof(DeviceExpert)));
  return bytes;
}

Result<> check(const Matrix& m, std::int64_t layer, const char* name) {
  return check_tileable(m, fmt::format("layers.{}.{}", layer, name).c_str());
}
Result<> check(const ExpertWeights& e, std::int64_t layer, const char* name) {
  PIVOT_TRY_VOID(check(e.w1, layer, fmt::format("{}.w1", name).c_str()));
  PIVOT_TRY_VOID(check(e.w3, layer, fmt::format("{}.w3", name).c_str()));
  return check(e.w2, layer, fmt::format("{}.w2", name).c_str());
}

}  // namespace

std::int64_t placed_bytes(const ModelWeights& w) {
  std::int64_t bytes = aligned(w.embed.rows * w.embed.cols * 2) + matrix_bytes(w.head) + vector_bytes(w.norm) + vector_bytes(w.hc_head.fn) +
                       vector_bytes(w.hc_head.base) + vector_bytes(w.hc_head.scale) + 2 * aligned(w.config.qk_rope_head_dim * 2);
  for (const LayerWeights& layer : w.layers) bytes += bytes_of(layer);
  return bytes;
}

Result<> check_placeable(const ModelWeights& w) {
  if (w.embed.format != MatrixFormat::kBF16)
    return fail(ErrorCode::kUnsupported, "embed.weight is {}; the CUDA back-end takes it as bf16", to_string(w.embed.format));
  PIVOT_TRY_VOID(check_tileable(w.head, "head.weight"));
  for (std::size_t l = 0; l < w.layers.size(); ++l) {
    const auto n = static_cast<std::int64_t>(l);
    const LayerWeights& layer = w.layers[l];
    const AttentionWeights& a = layer.attn;
    PIVOT_TRY_VOID(check(a.wq_a, n, "attn.wq_a"));
    PIVOT_TRY_VOID(check(a.wq_b, n, "attn.wq_b"));
    PIVOT_TRY_VOID(check(a.wkv, n, "attn.wkv"));
    PIVOT_TRY_VOID(check(a.wo_a, n, "attn.wo_a"));
    PIVOT_TRY_VOID(check(a.wo_b, n, "attn.wo_b"));
    PIVOT_TRY_VOID(check(layer.ffn.gate, n, "ffn.gate"));
    if (a.compressor) PIVOT_TRY_VOID(check(a.compressor->wkv, n, "attn.compressor.wkv"));
    if (a.indexer) {
      PIVOT_TRY_VOID(check(a.indexer->wq_b, n, "attn.indexer.wq_b"));
      PIVOT_TRY_VOID(check(a.indexer->weights_proj, n, "attn.indexer.weights_proj"));
      PIVOT_TRY_VOID(check(a.indexer->compressor.wkv, n, "attn.indexer.compressor.wkv"));
    }
    const MatrixFormat format = layer.ffn.experts.front().w1.format;
    for (const ExpertWeights& e : layer.ffn.experts) {
      PIVOT_TRY_VOID(check(e, n, "ffn.experts"));
      if (e.w1.format != format || e.w3.format != format || e.w2.format != format)
        return fail(ErrorCode::kUnsupported, "layers.{}.ffn.experts mixes formats; the CUDA back-end needs one format a layer", l);
    }
    PIVOT_TRY_VOID(check(layer.ffn.shared, n, "ffn.shared_experts"));
    if (layer.ffn.shared.w1.format != MatrixFormat::kFP8 && layer.ffn.shared.w1.format != MatrixFormat::kBF16)
      return fail(ErrorCode::kUnsupported, "layers.{}.ffn.shared_experts is {}; fp8 or bf16 was wanted", l, to_string(layer.ffn.shared.w1.format));
  }
  return {};
}

PlacedModel::~PlacedModel() {
  if (memory_ != nullptr) cudaFree(memory_);
}

std::byte* PlacedModel::take(std::int64_t bytes) {
  PIVOT_CHECK(used_ + bytes <= capacity_, "{} + {} of {} bytes", used_, bytes, capacity_);
  std::byte* memory = memory_ + used_;
  used_ += aligned(bytes);
  return memory;
}

void PlacedModel::upload(std::byte* device, const void* host, std::int64_t bytes) {
  if (!status_ || bytes == 0) return;
  status_ = check_cuda(cudaMemcpy(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "copying weights to the GPU");
}

Matrix PlacedModel::place(const Matrix& matrix) {
  const TiledSize size = tiled_size(matrix);
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
  upload(codes, matrix.codes, matrix.code_bytes());
  placed.codes = codes;
  return placed;
}

FloatSpan PlacedModel::place(FloatSpan values) {
  std::byte* memory = take(static_cast<std::int64_t>(values.size()) * 4);
  upload(memory, values.data(), static_cast<std::int64_t>(values.size()) * 4);
  return {reinterpret_cast<const float*>(memory), values.size()};
}

void PlacedModel::place(HyperConnectionWeights& w) {
  w.fn = place(w.fn);
  w.base = place(w.base);
  w.scale = place(w.scale);
}

void PlacedModel::place(CompressorWeights& w) {
  w.wkv = place(w.wkv);
  w.wgate = place(w.wgate);
  w.ape = place(w.ape);
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
  for (FloatSpan* v : {&a.q_norm, &a.kv_norm, &a.attn_sink}) *v = place(*v);
  if (a.compressor) place(*a.compressor);
  if (a.indexer) {
    a.indexer->wq_b = place(a.indexer->wq_b);
    a.indexer->weights_proj = place(a.indexer->weights_proj);
    place(a.indexer->compressor);
  }
  MoeWeights& ffn = layer.ffn;
  ffn.gate = place(ffn.gate);
  ffn.bias = place(ffn.bias);
  std::byte* table = take(static_cast<std::int64_t>(ffn.tid2eid.size()) * 4);
  upload(table, ffn.tid2eid.data(), static_cast<std::int64_t>(ffn.tid2eid.size()) * 4);
  ffn.tid2eid = {reinterpret_cast<const std::int32_t*>(table), ffn.tid2eid.size()};
  std::vector<DeviceExpert> experts;
  for (ExpertWeights& e : ffn.experts) {
    place(e);
    experts.push_back({e.w1, e.w3, e.w2});
  }
  place(ffn.shared);
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
  weights_.hc_head.fn = place(source.hc_head.fn);
  weights_.hc_head.base = place(source.hc_head.base);
  weights_.hc_head.scale = place(source.hc_head.scale);
  const auto rope = [&](const RopeConfig& config) {
    const std::vector<float> frequencies = rope_frequencies(config, source.config.qk_rope_head_dim);
    return place(FloatSpan(frequencies)).data();
  };
  rope_main_ = rope(source.config.rope_main);
  rope_compress_ = rope(source.config.rope_compress);
  for (LayerWeights& layer : weights_.layers) place(layer);
  return status_;
}

Result<std::shared_ptr<PlacedModel>> PlacedModel::create(const ModelWeights& weights) {
  PIVOT_TRY_VOID(check_placeable(weights));
  std::shared_ptr<PlacedModel> placed(new PlacedModel());
  placed->capacity_ = placed_bytes(weights);
  std::size_t free_bytes = 0, total_bytes = 0;
  PIVOT_TRY_VOID(check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the GPU's free memory"));
  if (placed->capacity_ > static_cast<std::int64_t>(free_bytes))
    return fail(ErrorCode::kOutOfMemory,
                "the weights need {} bytes of GPU memory and {} of {} are free ({} are missing); nothing was loaded. Free the memory that other "
                "processes hold, or plan a layout over more GPUs with `pivot plan`",
                placed->capacity_, free_bytes, total_bytes, placed->capacity_ - static_cast<std::int64_t>(free_bytes));
  void* memory = nullptr;
  PIVOT_TRY_VOID(check_cuda(cudaMalloc(&memory, static_cast<std::size_t>(placed->capacity_)), "allocating the weights"));
  placed->memory_ = static_cast<std::byte*>(memory);
  PIVOT_TRY_VOID(placed->fill(weights));
  return placed;
}

}  // namespace pivot::cuda
