// The router, the experts and the LM head (specification 2.7, 2.2 end).
//
// Tokens are grouped by expert. All first projections run in one parallel region, then SwiGLU and the second
// input, then the second projections: there every thread owns a range of output columns and adds the experts
// in ascending id, so the sum of a token has one order, whatever else is in the batch and however many
// threads there are.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/cpu/reference/router.h"
#include "ops/cpu/simd/linear.h"

namespace pivot::simd {
namespace {

constexpr std::int64_t kAddTokens = 96;  // rows of one second projection before they are added

// One expert's share of the step: slots [first, first+count) of the grouped order.
struct Group {
  const ExpertWeights* expert = nullptr;
  std::int64_t first = 0, count = 0;
  ActQuant act = ActQuant::kFp8;
};

struct Grouping {
  std::vector<Group> groups;           // experts in ascending id, then the shared expert
  std::vector<std::int32_t> token_of;  // [slots]
  std::vector<float> weight_of;        // [slots]; 1 for the shared expert
};

Grouping group_tokens(const Knobs& knobs, const StepBatch& batch, const MoeParams& p, std::int64_t chosen) {
  const MoeWeights& weights = *p.weights;
  const std::int64_t tokens = batch.num_tokens, routed = tokens * chosen;
  Grouping grouping;
  std::vector<std::int64_t> begin(weights.experts.size() + 1, 0);
  for (std::int64_t at = 0; at < routed; ++at) ++begin[static_cast<std::size_t>(p.expert_ids[at]) + 1];
  for (std::size_t e = 0; e < weights.experts.size(); ++e) {
    if (begin[e + 1] > 0)
      grouping.groups.push_back({&weights.experts[e], begin[e], begin[e + 1], knobs.expert_act});
    begin[e + 1] += begin[e];
  }
  grouping.groups.push_back({&weights.shared, routed, tokens, knobs.dense_act});
  grouping.token_of.resize(static_cast<std::size_t>(routed + tokens));
  grouping.weight_of.assign(static_cast<std::size_t>(routed + tokens), 1.0f);
  for (std::int64_t at = 0; at < routed; ++at) {
    const auto slot = static_cast<std::size_t>(begin[static_cast<std::size_t>(p.expert_ids[at])]++);
    grouping.token_of[slot] = static_cast<std::int32_t>(at / chosen);
    grouping.weight_of[slot] = p.expert_weights[at];
  }
  for (std::int64_t t = 0; t < tokens; ++t)
    grouping.token_of[static_cast<std::size_t>(routed + t)] = static_cast<std::int32_t>(t);
  return grouping;
}

// Prepared rows for every slot. Experts that want the same kind of input share the rows of a token.
const float** slot_inputs(Context& context, const Grouping& grouping, const float* x, std::int64_t tokens,
                          std::int64_t width) {
  std::vector<InputKind> kinds;
  std::vector<std::size_t> kind_of;
  for (const Group& group : grouping.groups) {
    const InputKind kind = input_kind(group.expert->w1, group.act);
    const auto found = std::find(kinds.begin(), kinds.end(), kind);
    kind_of.push_back(static_cast<std::size_t>(found - kinds.begin()));
    if (found == kinds.end()) kinds.push_back(kind);
  }
  auto** rows = context.scratch.take<const float*>(static_cast<std::int64_t>(grouping.token_of.size()));
  if (kinds.size() <= 2) {
    const std::vector<PreparedInput> prepared = prepare_inputs(context, x, tokens, width, width, kinds);
    for (std::size_t g = 0; g < grouping.groups.size(); ++g)
      for (std::int64_t i = grouping.groups[g].first; i < grouping.groups[g].first + grouping.groups[g].count;
           ++i)
        rows[i] = prepared[kind_of[g]].rows[grouping.token_of[static_cast<std::size_t>(i)]];
    return rows;
  }
  // NVFP4 activations: every expert has an input scale of its own.
  const std::int64_t padded = padded_columns(width);
  auto* space = context.scratch.take<float>(static_cast<std::int64_t>(grouping.token_of.size()) * padded);
  for (std::size_t g = 0; g < grouping.groups.size(); ++g) {
    const Group& group = grouping.groups[g];
    context.pool.for_ranges(group.count, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> temporary(static_cast<std::size_t>(width));
      for (std::int64_t i = group.first + begin; i < group.first + end; ++i) {
        prepare_row(context.kernels, kinds[kind_of[g]],
                    x + grouping.token_of[static_cast<std::size_t>(i)] * width, width, temporary.data(),
                    space + i * padded);
        rows[i] = space + i * padded;
      }
    });
  }
  return rows;
}

}  // namespace

void moe(Context& context, const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
         const MoeParams& p) {
  const ModelConfig& config = *layer.config;
  const Kernels& kernels = context.kernels;
  const bool round = rounds(knobs);
  const std::int64_t tokens = batch.num_tokens, width = config.hidden_size;
  const auto limit = static_cast<float>(config.swiglu_limit);
  const Grouping grouping = group_tokens(knobs, batch, p, config.num_experts_per_tok);
  const auto slots = static_cast<std::int64_t>(grouping.token_of.size());
  const std::int64_t inner = p.weights->shared.w1.rows;
  const float** x = slot_inputs(context, grouping, floats(p.x), tokens, width);

  auto* gate = context.scratch.take<float>(slots * inner);
  auto* up = context.scratch.take<float>(slots * inner);
  std::vector<LinearJob> jobs;
  for (const Group& group : grouping.groups) {
    PIVOT_CHECK(group.expert->w1.rows == inner, "{} of {}", group.expert->w1.rows, inner);
    const auto job = [&](const Matrix& w, float* out) {
      jobs.push_back({&w, input_kind(w, group.act).order, 0, inner, x + group.first, group.count,
                      out + group.first * inner, inner, round});
    };
    job(group.expert->w1, gate);
    job(group.expert->w3, up);
  }
  run_linear(context, jobs);

  const std::int64_t padded = padded_columns(inner);
  auto* hidden = context.scratch.take<float>(slots * padded);
  auto** hidden_rows = context.scratch.take<const float*>(slots);
  std::vector<const Group*> group_of(static_cast<std::size_t>(slots));
  for (const Group& group : grouping.groups) std::fill_n(group_of.begin() + group.first, group.count, &group);
  const auto activate = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> temporary(static_cast<std::size_t>(inner));
    for (std::int64_t i = begin; i < end; ++i) {
      const Group& group = *group_of[static_cast<std::size_t>(i)];
      kernels.swiglu(gate + i * inner, up + i * inner, inner, limit,
                     grouping.weight_of[static_cast<std::size_t>(i)], round);
      prepare_row(kernels, input_kind(group.expert->w2, group.act), gate + i * inner, inner, temporary.data(),
                  hidden + i * padded);
      hidden_rows[i] = hidden + i * padded;
    }
  };
  if (slots * inner < 8192)
    activate(0, slots);
  else
    context.pool.for_ranges(slots, 1, activate);

  float* out = floats(p.out);
  context.pool.for_ranges(width, 16, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = end - begin;
    std::vector<float> product(static_cast<std::size_t>(kAddTokens * columns));
    for (std::int64_t t = 0; t < tokens; ++t) std::fill_n(out + t * width + begin, columns, 0.0f);
    for (const Group& group : grouping.groups)
      for (std::int64_t first = 0; first < group.count; first += kAddTokens) {
        const std::int64_t count = std::min(kAddTokens, group.count - first);
        kernels.linear(group.expert->w2, input_kind(group.expert->w2, group.act).order, begin, end,
                       hidden_rows + group.first + first, count, product.data(), columns, round);
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t slot = group.first + first + i;
          float* sum = out + grouping.token_of[static_cast<std::size_t>(slot)] * width + begin;
          kernels.accumulate(sum, product.data() + i * columns, columns);
          if (group.expert == &p.weights->shared && round) kernels.round_bf16(sum, columns);
        }
      }
  });
}

void route(Context& context, const LayerContext& layer, const Knobs&, const StepBatch& batch,
           const RouteParams& p) {
  const ModelConfig& config = *layer.config;
  const MoeWeights& weights = *p.weights;
  const std::int64_t experts = config.n_routed_experts, chosen = config.num_experts_per_tok;
  const reference::RouterRule rule{static_cast<int>(chosen), config.norm_topk_prob,
                                   static_cast<float>(config.routed_scaling_factor)};
  auto* z = context.scratch.take<float>(batch.num_tokens * experts);
  LinearStep step(context, floats(p.x), batch.num_tokens, config.hidden_size);
  step.add(weights.gate, ActQuant::kBf16, z, false);
  step.run();
  context.for_each(batch.num_tokens, [&](std::int64_t t) {
    std::span<const std::int32_t> table;
    if (!weights.tid2eid.empty())
      table = weights.tid2eid.subspan(static_cast<std::size_t>(batch.token_ids[t] * chosen),
                                      static_cast<std::size_t>(chosen));
    const float margin =
        reference::route_token({z + t * experts, static_cast<std::size_t>(experts)}, weights.bias, table,
                               rule, p.expert_ids + t * chosen, p.expert_weights + t * chosen);
    if (p.margin != nullptr) p.margin[t] = margin;
  });
}

void logits(Context& context, const LogitsParams& p) {
  LinearStep step(context, floats(p.x), p.num_rows, p.head.cols);
  step.add(p.head, ActQuant::kBf16, p.logits, false);
  step.run();
}

}  // namespace pivot::simd
