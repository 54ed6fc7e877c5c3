#include "checkpoint/plan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pivot {

namespace {

std::size_t at(MemoryClass memory_class) { return static_cast<std::size_t>(memory_class); }

std::int64_t share_of(std::int64_t bytes, int gpus) { return (bytes + gpus - 1) / gpus; }

// The layers of one pipeline stage.
struct StageRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
StageRange stage_range(std::int64_t layers, int stages, int stage) {
  return {layers * stage / stages, layers * (stage + 1) / stages};
}

ModelConfig with_layers(const ModelConfig& config, StageRange range) {
  ModelConfig part = config;
  part.num_hidden_layers = range.end - range.begin;
  part.compress_ratios.assign(config.compress_ratios.begin() + range.begin,
                              config.compress_ratios.begin() + range.end);
  return part;
}

struct StageMemory {
  std::array<std::int64_t, kNumMemoryClasses> weights{};
  CacheBytes cache;
};

void add_block(StageMemory& stage, const WeightBytes& block, int split) {
  const std::int64_t experts = block.of(Module::kRoutedExpert);
  const std::int64_t sharded =
      std::accumulate(block.sharded.begin(), block.sharded.end(), std::int64_t{0}) - experts;
  const std::int64_t replicated =
      std::accumulate(block.replicated.begin(), block.replicated.end(), std::int64_t{0});
  stage.weights[at(MemoryClass::kExperts)] += share_of(experts, split);
  stage.weights[at(MemoryClass::kShardedWeights)] += share_of(sharded, split);
  stage.weights[at(MemoryClass::kReplicatedWeights)] += replicated;
}

// Weights and cache of the GPU that holds stage `stage` of `gpus` (pipeline), or of any GPU (tensor, expert).
StageMemory stage_memory(const ModelFacts& model, Parallelism parallelism, int gpus, int stage, bool draft) {
  const ModelBytes& bytes = model.bytes;
  StageMemory result;
  const std::int64_t embedding = bytes.global.of(Module::kEmbedding);
  const std::int64_t head = bytes.global.of(Module::kHead);
  const std::int64_t small = bytes.global.total() - embedding - head;
  const auto add_drafts = [&](int split, bool experts_only) {
    if (!draft) return;
    for (const WeightBytes& block : bytes.drafts) {
      const std::int64_t experts = block.of(Module::kRoutedExpert);
      const std::int64_t sharded =
          std::accumulate(block.sharded.begin(), block.sharded.end(), std::int64_t{0}) - experts;
      const std::int64_t replicated = block.total() - experts - sharded;
      result.weights[at(MemoryClass::kDraft)] +=
          share_of(experts, split) + (experts_only ? sharded : share_of(sharded, split)) + replicated;
    }
  };
  switch (parallelism) {
    case Parallelism::kTensor:
      for (const WeightBytes& layer : bytes.layers) add_block(result, layer, gpus);
      result.weights[at(MemoryClass::kShardedWeights)] += share_of(head, gpus);
      result.weights[at(MemoryClass::kEmbedding)] = embedding;
      result.weights[at(MemoryClass::kReplicatedWeights)] += small;
      add_drafts(gpus, false);
      result.cache = cache_bytes(model.config, model.cache, draft ? model.draft_stages : 0);
      if (model.split_index_keys) result.cache.index_per_token /= gpus;
      break;
    case Parallelism::kExpert:
      for (const WeightBytes& layer : bytes.layers) {
        result.weights[at(MemoryClass::kExperts)] += share_of(layer.of(Module::kRoutedExpert), gpus);
        result.weights[at(MemoryClass::kReplicatedWeights)] +=
            layer.total() - layer.of(Module::kRoutedExpert);
      }
      result.weights[at(MemoryClass::kReplicatedWeights)] += head + small;
      result.weights[at(MemoryClass::kEmbedding)] = embedding;
      add_drafts(gpus, true);
      result.cache = cache_bytes(model.config, model.cache, draft ? model.draft_stages : 0);
      break;
    case Parallelism::kPipeline: {
      const StageRange range = stage_range(static_cast<std::int64_t>(bytes.layers.size()), gpus, stage);
      for (std::int64_t layer = range.begin; layer < range.end; ++layer)
        add_block(result, bytes.layers[static_cast<std::size_t>(layer)], 1);
      if (stage == 0) result.weights[at(MemoryClass::kEmbedding)] = embedding;
      if (stage == gpus - 1) {
        result.weights[at(MemoryClass::kShardedWeights)] += head;
        result.weights[at(MemoryClass::kReplicatedWeights)] += small;
        add_drafts(1, true);
      }
      result.cache = cache_bytes(with_layers(model.config, range), model.cache,
                                 draft && stage == gpus - 1 ? model.draft_stages : 0);
      break;
    }
  }
  return result;
}

}  // namespace

std::string Layout::name() const {
  std::string one = gpus == 1 ? "1 GPU" : fmt::format("{}{}", to_string(parallelism), gpus);
  return replicas == 1 ? one : fmt::format("{} x {}", one, replicas);
}

std::string_view memory_class_name(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kExperts:
      return "routed experts";
    case MemoryClass::kShardedWeights:
      return "other split weights";
    case MemoryClass::kReplicatedWeights:
      return "replicated weights";
    case MemoryClass::kEmbedding:
      return "embedding";
    case MemoryClass::kDraft:
      return "draft head";
    case MemoryClass::kRatio4Rows:
      return "KV, ratio-4 rows";
    case MemoryClass::kRatio128Rows:
      return "KV, ratio-128 rows";
    case MemoryClass::kIndexKeys:
      return "index keys";
    case MemoryClass::kPagePadding:
      return "page padding";
    case MemoryClass::kRings:
      return "window rings";
    case MemoryClass::kCompressorState:
      return "compressor state";
    case MemoryClass::kWorkspace:
      return "workspace";
    case MemoryClass::kRuntime:
      return "runtime";
  }
  return "";
}

std::int64_t MemoryPlan::weights() const {
  std::int64_t sum = 0;
  for (const MemoryClass weight :
       {MemoryClass::kExperts, MemoryClass::kShardedWeights, MemoryClass::kReplicatedWeights,
        MemoryClass::kEmbedding, MemoryClass::kDraft})
    sum += of(weight);
  return sum;
}

std::int64_t MemoryPlan::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::int64_t capacity_tokens(double free_bytes, double bytes_per_token) {
  if (free_bytes <= 0 || bytes_per_token <= 0) return 0;
  return static_cast<std::int64_t>(free_bytes / bytes_per_token);
}

std::int64_t step_buffer_bytes(const ModelConfig& config, const StepShape& step) {
  constexpr std::int64_t kWord = 4;  // fp32 and int32
  const std::int64_t d = config.hidden_size;
  const std::int64_t streams = config.hc_mult;
  const std::int64_t heads_width = config.num_attention_heads * config.head_dim / step.split;
  std::int64_t values = streams * d + 2 * d;  // residual streams, input and output of a sublayer
  values += config.q_lora_rank + config.head_dim + 2 * heads_width;  // latents, queries, attention output
  values += config.index_n_heads * config.index_head_dim;
  std::int64_t words = 4;                                       // id, position, span, gate margin
  words += streams + streams * streams + config.index_n_heads;  // post and comb, index weights
  words += config.index_topk + 1 + 2 * config.num_experts_per_tok;
  const std::int64_t per_token =
      values * step.activation_bytes + words * kWord + (config.nope_head_dim() + 63) / 64;
  return per_token * step.tokens +
         step.logit_rows * (d * step.activation_bytes + (config.vocab_size + 1) * kWord);
}

std::int64_t operator_scratch_bytes(const ModelConfig& config, const StepShape& step) {
  const std::int64_t d = config.hidden_size;
  const std::int64_t inner = config.moe_intermediate_size / step.split;
  const std::int64_t experts = config.num_experts_per_tok + config.n_shared_experts;
  const std::int64_t groups = config.o_groups * config.o_lora_rank / step.split;
  // FP8 rows by expert, then gate, up and down products.
  // EP receives the rows of every GPU: up to gpus times its own share of the chunk, which is chunk / gpus.
  return step.tokens *
         (groups * step.activation_bytes + experts * (d + (2 * inner + d) * step.activation_bytes));
}

MemoryPlan plan_memory(const ModelFacts& model, const Machine& machine, Parallelism parallelism, int gpus,
                       const MemoryOptions& options) {
  const int stages = parallelism == Parallelism::kPipeline ? gpus : 1;
  // EP: every GPU has its own sequences; otherwise all GPUs of the replica share every sequence.
  const double sequences =
      parallelism == Parallelism::kExpert ? std::ceil(options.sequences / gpus) : options.sequences;
  StepShape step;
  step.tokens = parallelism == Parallelism::kPipeline ? kPipelineChunkTokens : kPrefillChunkTokens;
  step.logit_rows = options.max_batch;
  step.split = parallelism == Parallelism::kTensor ? gpus : 1;
  const std::int64_t workspace =
      step_buffer_bytes(model.config, step) + operator_scratch_bytes(model.config, step);
  MemoryPlan fullest;
  for (int stage = 0; stage < stages; ++stage) {
    StageMemory memory = stage_memory(model, parallelism, gpus, stage, options.draft);
    MemoryPlan plan;
    plan.available = static_cast<std::int64_t>(machine.gpu.memory_bytes());
    plan.bytes = memory.weights;
    plan.bytes[at(MemoryClass::kWorkspace)] = workspace;
    plan.bytes[at(MemoryClass::kRuntime)] = kRuntimeBytes;
    // Pages belong to one sequence: each context takes whole ones.
    const std::int64_t pages = (options.context_tokens + kPageTokens - 1) / kPageTokens;
    const double tokens = sequences * static_cast<double>(pages * kPageTokens);
    const auto whole = [](double bytes) { return static_cast<std::int64_t>(std::ceil(bytes)); };
    plan.bytes[at(MemoryClass::kRatio4Rows)] = whole(tokens * memory.cache.ratio4_per_token);
    plan.bytes[at(MemoryClass::kRatio128Rows)] = whole(tokens * memory.cache.ratio128_per_token);
    plan.bytes[at(MemoryClass::kIndexKeys)] = whole(tokens * memory.cache.index_per_token);
    plan.bytes[at(MemoryClass::kPagePadding)] = whole(tokens * memory.cache.padding_per_token);
    plan.bytes[at(MemoryClass::kRings)] =
        whole(sequences * static_cast<double>(memory.cache.rings + memory.cache.draft_rings));
    plan.bytes[at(MemoryClass::kCompressorState)] =
        whole(sequences * static_cast<double>(memory.cache.compressor_state));
    plan.bytes_per_token = memory.cache.allocated_per_token();
    plan.bytes_per_sequence = memory.cache.per_sequence();
    const std::int64_t experts = plan.of(MemoryClass::kExperts);
    if (options.offload && !plan.fits() && experts > 0) {
      const std::int64_t excess = plan.total() - plan.available;
      if (excess <= experts) {
        plan.resident_experts = 1 - static_cast<double>(excess) / static_cast<double>(experts);
        plan.bytes[at(MemoryClass::kExperts)] -= excess;
        plan.host_bytes = excess * (parallelism == Parallelism::kPipeline ? 1 : gpus);
      }
    }
    const std::int64_t cache = plan.of(MemoryClass::kRatio4Rows) + plan.of(MemoryClass::kRatio128Rows) +
                               plan.of(MemoryClass::kIndexKeys) + plan.of(MemoryClass::kPagePadding);
    plan.capacity_tokens =
        capacity_tokens(static_cast<double>(plan.available - (plan.total() - cache)), plan.bytes_per_token) *
        (parallelism == Parallelism::kExpert ? gpus : 1);
    const bool first = stage == 0;
    const std::int64_t capacity =
        first ? plan.capacity_tokens : std::min(fullest.capacity_tokens, plan.capacity_tokens);
    const double resident =
        first ? plan.resident_experts : std::min(fullest.resident_experts, plan.resident_experts);
    const std::int64_t host = first ? plan.host_bytes : fullest.host_bytes + plan.host_bytes;
    if (first || plan.total() > fullest.total()) fullest = plan;
    fullest.capacity_tokens = capacity;
    fullest.resident_experts = resident;
    fullest.host_bytes = host;
  }
  return fullest;
}

}  // namespace pivot
