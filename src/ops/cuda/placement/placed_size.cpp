#include "ops/cuda/placement/placed_size.h"

#include <algorithm>

#include "ops/cuda/placement/device_expert.h"
#include "ops/cuda/placement/tiles.h"

namespace pivot::cuda {
namespace {

std::int64_t aligned(std::int64_t bytes) { return aligned_bytes(bytes); }

std::int64_t matrix_bytes(const Matrix& m) {
  const TiledSize size = tiled_size(m);
  return aligned(size.code_bytes) + aligned(size.scale_bytes);
}
std::int64_t vector_bytes(FloatSpan v) { return aligned(static_cast<std::int64_t>(v.size()) * 4); }
std::int64_t bytes_of(const HyperConnectionWeights& w) {
  return vector_bytes(w.fn) + vector_bytes(w.base) + vector_bytes(w.scale);
}
std::int64_t bytes_of(const CompressorWeights& w) {
  return matrix_bytes(w.wkv) + matrix_bytes(w.wgate) + vector_bytes(w.ape) + vector_bytes(w.norm);
}
std::int64_t bytes_of(const ExpertWeights& w) {
  return matrix_bytes(w.w1) + matrix_bytes(w.w3) + matrix_bytes(w.w2);
}

std::int64_t bytes_of(const LayerWeights& layer, std::int64_t resident_experts) {
  const AttentionWeights& a = layer.attn;
  std::int64_t bytes = vector_bytes(layer.attn_norm) + vector_bytes(layer.ffn_norm) +
                       bytes_of(layer.attn_hc) + bytes_of(layer.ffn_hc);
  for (const Matrix* m : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &layer.ffn.gate})
    bytes += matrix_bytes(*m);
  for (const FloatSpan v : {a.q_norm, a.kv_norm, a.attn_sink, layer.ffn.bias}) bytes += vector_bytes(v);
  if (a.compressor) bytes += bytes_of(*a.compressor);
  if (a.indexer)
    bytes += matrix_bytes(a.indexer->wq_b) + matrix_bytes(a.indexer->weights_proj) +
             bytes_of(a.indexer->compressor);
  bytes += aligned(static_cast<std::int64_t>(layer.ffn.tid2eid.size()) * 4);
  const auto experts = static_cast<std::int64_t>(layer.ffn.experts.size());
  const std::int64_t resident = resident_experts > 0 ? std::min(resident_experts, experts) : experts;
  for (std::int64_t e = 0; e < resident; ++e)
    bytes += bytes_of(layer.ffn.experts[static_cast<std::size_t>(e)]);
  bytes += bytes_of(layer.ffn.shared) +
           aligned(static_cast<std::int64_t>((layer.ffn.experts.size() + 1) * sizeof(DeviceExpert)));
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

std::int64_t placed_bytes(const ModelWeights& w, std::int64_t resident_experts) {
  std::int64_t bytes = aligned(w.embed.rows * w.embed.cols * 2) + matrix_bytes(w.head) +
                       vector_bytes(w.norm) + vector_bytes(w.hc_head.fn) + vector_bytes(w.hc_head.base) +
                       vector_bytes(w.hc_head.scale) + 2 * aligned(w.config.qk_rope_head_dim * 2);
  for (const LayerWeights& layer : w.layers) bytes += bytes_of(layer, resident_experts);
  return bytes;
}

Result<> check_placeable(const ModelWeights& w) {
  if (w.embed.format != MatrixFormat::kBF16)
    return fail(ErrorCode::kUnsupported, "embed.weight is {}; the CUDA back-end takes it as bf16",
                to_string(w.embed.format));
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
        return fail(ErrorCode::kUnsupported,
                    "layers.{}.ffn.experts mixes formats; the CUDA back-end needs one format a layer", l);
    }
    PIVOT_TRY_VOID(check(layer.ffn.shared, n, "ffn.shared_experts"));
    if (layer.ffn.shared.w1.format != MatrixFormat::kFP8 && layer.ffn.shared.w1.format != MatrixFormat::kBF16)
      return fail(ErrorCode::kUnsupported, "layers.{}.ffn.shared_experts is {}; fp8 or bf16 was wanted", l,
                  to_string(layer.ffn.shared.w1.format));
  }
  return {};
}

}  // namespace pivot::cuda
