// The experts, and which kernels the linear layers of a step take: decode, wgmma or block-scaled.
#include "ops/cuda/block_scaled/fragments.h"
#include "ops/cuda/cuda_backend.h"

#include <utility>

namespace pivot::cuda {
namespace {

// Every expert of a layer has one format (check_placeable).
bool takes_block_scaled(const MoeWeights& w, const Knobs& knobs) {
  const ExpertWeights& routed = w.experts.front();
  const auto kind = block_kind(routed.w1, knobs.expert_act);
  return kind && block_kind(routed.w2, knobs.expert_act) == kind &&
         block_kind(w.shared.w1, knobs.dense_act) == BlockKind::kFp8 &&
         block_kind(w.shared.w2, knobs.dense_act) == BlockKind::kFp8;
}

}  // namespace

void CudaBackend::moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                      const MoeParams& p) {
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
  a.table = placed(*layer.config).experts(w);
  a.experts = static_cast<std::int32_t>(c.n_routed_experts);
  if (tokens == 1 && switches_.fused && knobs.expert_act != ActQuant::kNvfp4) {
    a.direct_ids = p.expert_ids;
  } else {
    a.list.expert = scratch_.get<std::int32_t>("list_expert", a.list.slots);
    a.list.first = scratch_.get<std::int32_t>("list_first", a.list.slots);
    a.list.count = scratch_.get<std::int32_t>("list_count", a.list.slots);
    a.list.weights = scratch_.get<DeviceExpert>("list_weights", a.list.slots);
    a.list.pairs = scratch_.get<std::int32_t>("list_pairs", pairs);
    a.list.tokens = scratch_.get<std::int32_t>("list_tokens", pairs);
    a.list.place = scratch_.get<std::int32_t>("list_place", pairs);
    launch_work_list(p.expert_ids, a.tokens, a.chosen, a.experts, a.table, a.list, stream_);
  }
  a.route_weights = p.expert_weights;
  a.hidden = scratch_.get<std::uint16_t>("expert_hidden", rows * a.inner);
  a.partial = scratch_.get<std::uint16_t>("expert_partial", rows * a.width);
  a.out = p.out;

  const Products path = products(tokens);
  if (path == Products::kBlockScaled && takes_block_scaled(w, knobs)) return moe_block_scaled(a, w, knobs, p);
  const bool gemm = path == Products::kWgmma && experts_fill_tiles(pairs, c.n_routed_experts) &&
                    knobs.expert_act != ActQuant::kNvfp4 && gemm_takes(w.shared.w1) &&
                    gemm_takes(w.shared.w2) && gemm_takes(w.experts.front().w1) &&
                    gemm_takes(w.experts.front().w2);
  if (gemm) return moe_gemm(a, w, knobs, p);
  const LinearInput shared =
      operand(w.shared.w1, knobs.dense_act, p.x, tokens, c.hidden_size, "moe_values", "moe_scales");
  a.shared_x = shared.x;
  a.shared_scales = shared.scales;
  const bool routed_quantized = a.routed_format != MatrixFormat::kBF16;
  if (knobs.expert_act == ActQuant::kNvfp4) {
    auto* values = scratch_.get<std::uint16_t>("expert_x", pairs * a.width);
    launch_expert_nvfp4(a, p.x, false, a.width, false, values, stream_);
    a.routed_x = values;
    a.routed_rows_per_place = true;
  } else {
    const LinearInput routed = operand(w.experts.front().w1, knobs.expert_act, p.x, tokens, c.hidden_size,
                                       "moe_values", "moe_scales");
    a.routed_x = routed.x;
    a.routed_scales = routed.scales;
  }
  a.tail = std::exchange(tail_, {});
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
  launch_expert_sum(a, stream_);
}

void CudaBackend::moe_gemm(ExpertArguments& a, const MoeWeights& w, const Knobs& knobs, const MoeParams& p) {
  const std::int64_t tokens = a.tokens, pairs = tokens * a.chosen;
  auto* hidden = static_cast<std::uint16_t*>(a.hidden);
  ExpertRows rows;
  rows.tiles = scratch_.get<ExpertTile>("gemm_tiles", most_expert_tiles(pairs, a.list.slots));
  rows.num_tiles = scratch_.get<std::int32_t>("gemm_num_tiles", 1);
  rows.row = scratch_.get<std::int32_t>("gemm_place_rows", pairs);
  rows.weight = scratch_.get<float>("gemm_place_weights", pairs);
  rows.rows = expert_operand_rows(pairs, a.list.slots);
  launch_expert_rows(a, rows, stream_);
  const bool fp8 = knobs.expert_act == ActQuant::kFp8 && a.routed_format != MatrixFormat::kBF16;
  // The inputs of w1 and w3 are read before the first result of w2 is written: one memory for both.
  auto* partial = scratch_.get<std::uint16_t>("expert_partial",
                                              std::max(pairs + tokens, rows.rows) * std::int64_t{a.width});
  a.partial = partial;
  launch_expert_operand(a, rows, p.x, false, a.width, fp8, partial, stream_);
  launch_gemm_experts_up(a, rows, partial, stream_);
  auto* v = scratch_.get<std::uint16_t>("gemm_expert_v", rows.rows * a.inner);
  launch_expert_operand(a, rows, hidden, true, a.inner, fp8, v, stream_);
  launch_gemm_experts_down(a, rows, v, stream_);

  const bool shared_fp8 = knobs.dense_act == ActQuant::kFp8 && a.shared_format != MatrixFormat::kBF16;
  auto* x = scratch_.get<std::uint16_t>("gemm_x", operand_rows(tokens) * a.width);
  launch_gemm_operand(p.x, tokens, a.width, a.width, a.shared_format, shared_fp8, x, stream_);
  launch_gemm_shared_up(a, x, stream_);
  std::uint16_t* shared = hidden + pairs * a.inner;
  run_gemm({{w.shared.w2, {shared, nullptr, a.inner}, partial + pairs * a.width, a.width, true}}, tokens,
           {shared, a.inner, knobs.dense_act});
  launch_gemm_expert_sum(a, stream_);
}

void CudaBackend::moe_block_scaled(ExpertArguments& a, const MoeWeights& w, const Knobs& knobs,
                                   const MoeParams& p) {
  const std::int64_t tokens = a.tokens, pairs = tokens * a.chosen;
  const bool nvfp4 = knobs.expert_act == ActQuant::kNvfp4;
  const auto* hidden = static_cast<const std::uint16_t*>(a.hidden);
  const BlockInput x = launch_block_operand(
      p.x, tokens, a.width, a.width, scratch_.get<std::uint8_t>("block_x", tokens * a.width),
      scratch_.get<std::uint8_t>("block_x_scales", tokens * block_scale_stride(a.width)), stream_);
  const auto nvfp4_input = [&](const void* from, bool by_place, std::int32_t cols, bool of_w2) {
    return launch_block_nvfp4(
        a, from, by_place, cols, of_w2,
        scratch_.get<std::uint8_t>("block_x4", pairs * std::max(a.width, a.inner) / 2),
        scratch_.get<std::uint8_t>("block_x4_scales", pairs * std::max(a.width, a.inner) / 16), stream_);
  };
  BlockExperts routed;
  routed.a = a;
  routed.kind = *block_kind(w.experts.front().w1, knobs.expert_act);
  routed.size = expert_block_size(pairs, a.experts);
  routed.input = nvfp4 ? nvfp4_input(p.x, false, a.width, false) : x;
  if (a.direct_ids == nullptr) {
    auto* tiles = scratch_.get<std::int32_t>("block_tiles", a.list.slots + 1);
    launch_tile_list(a.list, block_tile(routed.kind, routed.size).tokens(), tiles, stream_);
    routed.tiles = tiles;
  }
  BlockExperts shared;
  shared.a = a;
  shared.kind = BlockKind::kFp8;
  shared.size = dense_block_size(tokens);
  shared.shared = true;
  shared.input = x;
  launch_block_experts_up(routed, stream_);
  launch_block_experts_up(shared, stream_);

  // The rows of w2: the routed ones by place, then the shared expert's.
  const std::int64_t first = nvfp4 ? pairs : 0, rows = pairs + tokens - first;
  BlockInput v = launch_block_operand(
      hidden + first * a.inner, rows, a.inner, a.inner, scratch_.get<std::uint8_t>("block_v", rows * a.inner),
      scratch_.get<std::uint8_t>("block_v_scales", rows * block_scale_stride(a.inner)), stream_);
  routed.input = nvfp4 ? nvfp4_input(hidden, true, a.inner, true) : v;
  shared.input = v;
  shared.input.codes += (pairs - first) * v.row_bytes;
  shared.input.scales += (pairs - first) * v.row_scale_bytes;
  launch_block_experts_down(routed, stream_);
  launch_block_experts_down(shared, stream_);
  launch_expert_sum(a, stream_);
}

void CudaBackend::run_products(Products path, const std::vector<LinearJob>& jobs, std::int64_t tokens,
                               const RawInput& raw) {
  switch (path) {
    case Products::kDecode:
      return launch_linear(jobs, tokens, stream_);
    case Products::kWgmma:
      return run_gemm(jobs, tokens, raw);
    case Products::kBlockScaled:
      return run_block_scaled(jobs, tokens, raw);
  }
}

void CudaBackend::run_gemm(const std::vector<LinearJob>& jobs, std::int64_t tokens, const RawInput& raw) {
  for (const MatrixFormat format :
       {MatrixFormat::kFP8, MatrixFormat::kBF16, MatrixFormat::kFP4, MatrixFormat::kNVFP4}) {
    std::vector<GemmJob> taken;
    std::uint16_t* x = nullptr;
    const bool fp8 = raw.act == ActQuant::kFp8 && format != MatrixFormat::kBF16;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const LinearJob& job = jobs[i];
      if (job.weights.format != format || !gemm_takes(job.weights)) continue;
      if (x == nullptr) {
        x = scratch_.get<std::uint16_t>("gemm_x", operand_rows(tokens) * raw.stride);
        launch_gemm_operand(raw.x, tokens, raw.stride, raw.stride, format, fp8, x, stream_);
      }
      const std::int64_t column = raw.column.empty() ? 0 : raw.column[i];  // a multiple of a panel
      taken.push_back(
          {job.weights, x + column * operand_rows(tokens), job.out, job.out_stride, job.out_bf16});
    }
    for (std::size_t i = 0; i < taken.size(); i += kMaxJobs)
      launch_gemm(std::span(taken).subspan(i, std::min<std::size_t>(kMaxJobs, taken.size() - i)), tokens,
                  stream_);
  }
  // What no tile of 128 rows fits, or whose block scales are no powers of two.
  run_rest(jobs, tokens, raw, [](const LinearJob& job, std::int64_t) { return gemm_takes(job.weights); });
}

void CudaBackend::run_block_scaled(const std::vector<LinearJob>& jobs, std::int64_t tokens,
                                   const RawInput& raw) {
  const auto takes = [&](const LinearJob& job, std::int64_t column) {
    return block_kind(job.weights, raw.act) == BlockKind::kFp8 && column % 512 == 0;
  };
  std::vector<BlockJob> taken;
  BlockInput x;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const LinearJob& job = jobs[i];
    const std::int64_t column = raw.column.empty() ? 0 : raw.column[i];
    if (!takes(job, column)) continue;
    if (x.codes == nullptr)
      x = launch_block_operand(
          raw.x, tokens, raw.stride, raw.stride, scratch_.get<std::uint8_t>("block_x", tokens * raw.stride),
          scratch_.get<std::uint8_t>("block_x_scales", tokens * block_scale_stride(raw.stride)), stream_);
    taken.push_back({job.weights, x, column, job.out, job.out_stride, job.out_bf16});
  }
  for (std::size_t i = 0; i < taken.size(); i += kMaxBlockJobs)
    launch_block_dense(std::span(taken).subspan(i, std::min<std::size_t>(kMaxBlockJobs, taken.size() - i)),
                       tokens, stream_);
  run_rest(jobs, tokens, raw, takes);
}

template <class Taken>
void CudaBackend::run_rest(const std::vector<LinearJob>& jobs, std::int64_t tokens, const RawInput& raw,
                           const Taken& taken) {
  std::vector<LinearJob> rest;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::int64_t column = raw.column.empty() ? 0 : raw.column[i];
    LinearJob job = jobs[i];
    if (taken(job, column)) continue;
    job.input = operand(job.weights, raw.act, raw.x, tokens, raw.stride, "rest_values", "rest_scales");
    job.input.x += column;
    if (job.input.scales != nullptr) job.input.scales += column / 128;
    rest.push_back(job);
    if (rest.size() < kMaxJobs) continue;
    launch_linear(rest, tokens, stream_);
    rest.clear();
  }
  if (!rest.empty()) launch_linear(rest, tokens, stream_);
}

}  // namespace pivot::cuda
