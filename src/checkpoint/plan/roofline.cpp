#include "checkpoint/plan/roofline.h"

#include <algorithm>
#include <cmath>

namespace pivot {

namespace {

// Two sublayers per block end in an all-reduce, and the logits are gathered once.
double messages_per_step(const ModelConfig& config) {
  return 2.0 * static_cast<double>(config.num_hidden_layers) + 1;
}

double hidden_bytes(const ModelConfig& config) {
  return 2.0 * static_cast<double>(config.hidden_size);
}  // BF16
// A pipeline boundary carries all hc_mult streams.
double residual_bytes(const ModelConfig& config) {
  return hidden_bytes(config) * static_cast<double>(config.hc_mult);
}

// Experts of the GPU that gets the most of `distinct` touched ones, when they are spread over `gpus`.
double busiest_share(double distinct, double experts, int gpus) {
  if (gpus <= 1) return distinct;
  const double mean = distinct / gpus;
  return std::min(
      {distinct, experts / gpus, mean + std::sqrt(2 * mean * std::log(static_cast<double>(gpus)))});
}

struct ActiveBytes {  // read by every decode step
  double replicated = 0;
  double sharded = 0;  // without routed experts
  double routed = 0;   // all of them
};

// The embedding and the hash tables are read a row at a time: they occupy memory, not bandwidth.
ActiveBytes active_bytes(const ModelBytes& bytes) {
  ActiveBytes active;
  active.routed = static_cast<double>(bytes.of(Module::kRoutedExpert));
  active.sharded = static_cast<double>(bytes.sharded()) - active.routed;
  active.replicated =
      static_cast<double>(bytes.replicated() - bytes.of(Module::kEmbedding) - bytes.of(Module::kHashTable));
  return active;
}

double compute_seconds(const Gpu& gpu, const Flops& flops) {
  return flops.fp8_able() / (gpu.fp8_tflops.value * 1e12) + flops.bf16() / (gpu.bf16_tflops.value * 1e12);
}

double bandwidth(const Machine& machine, const DecodeAssumptions& assumptions) {
  return assumptions.bandwidth_bytes_per_second > 0 ? assumptions.bandwidth_bytes_per_second
                                                    : machine.gpu.bandwidth_gbs.value * 1e9;
}

// Share of a ring all-reduce's bytes that each GPU sends.
double ring_factor(int gpus) { return 2.0 * (gpus - 1) / gpus; }

}  // namespace

const char* to_string(Parallelism parallelism) {
  switch (parallelism) {
    case Parallelism::kTensor:
      return "TP";
    case Parallelism::kPipeline:
      return "PP";
    case Parallelism::kExpert:
      return "EP";
  }
  return "";
}

double distinct_experts(const ModelConfig& config, double batch) {
  const auto experts = static_cast<double>(config.n_routed_experts);
  return experts * (1 - std::pow(1 - static_cast<double>(config.num_experts_per_tok) / experts, batch));
}

double weight_bytes_read(const ModelFacts& model, double batch) {
  const ActiveBytes active = active_bytes(model.bytes);
  return active.replicated + active.sharded +
         active.routed * distinct_experts(model.config, batch) /
             static_cast<double>(model.config.n_routed_experts);
}

double ideal_decode_tokens_per_second(const ModelFacts& model, const Machine& machine, int gpus, double batch,
                                      double context, const DecodeAssumptions& assumptions) {
  const double bytes =
      weight_bytes_read(model, batch) + batch * cache_reads(model.config, model.cache, context).total();
  return batch * gpus * bandwidth(machine, assumptions) / bytes;
}

DecodeStep decode_step(const ModelFacts& model, const Machine& machine, Parallelism parallelism, int gpus,
                       double batch, double context, const DecodeAssumptions& assumptions) {
  const ModelConfig& config = model.config;
  const ActiveBytes active = active_bytes(model.bytes);
  const CacheReads reads = cache_reads(config, model.cache, context);
  const auto experts = static_cast<double>(config.n_routed_experts);
  const Flops token = decode_flops(config, context);
  const double link = machine.collective_bytes_per_second(gpus);
  DecodeStep step;
  step.batch = batch;

  double micro_batch = batch;  // what one GPU works on at a time
  double rounds = 1;           // PP: micro-batches in flight, each visiting every stage
  double share = 1.0 / gpus;   // of matrices and work that the busiest GPU has
  switch (parallelism) {
    case Parallelism::kTensor: {
      const double distinct = distinct_experts(config, batch) / experts;
      step.weight_bytes = active.replicated + (active.sharded + active.routed * distinct) * share;
      // One latent serves all heads, so main rows are read on every rank; index keys are split by context.
      step.cache_bytes = batch * (reads.window + reads.ratio4 + reads.ratio128 +
                                  reads.index * (model.split_index_keys ? share : 1.0));
      if (gpus > 1) {
        step.message_seconds = messages_per_step(config) * machine.all_reduce_seconds(gpus);
        if (assumptions.message_bytes)
          step.message_seconds += 2.0 * static_cast<double>(config.num_hidden_layers) *
                                  std::max(0.0, batch - 1) * hidden_bytes(config) * ring_factor(gpus) / link;
      }
      break;
    }
    case Parallelism::kPipeline: {
      micro_batch = std::max(1.0, std::ceil(batch / gpus));
      rounds = gpus;
      const double distinct = distinct_experts(config, micro_batch) / experts;
      step.weight_bytes = (active.replicated + active.sharded + active.routed * distinct) * share;
      step.cache_bytes = micro_batch * reads.total() * share;
      if (gpus > 1)
        step.message_seconds =
            gpus * (machine.all_reduce_seconds(2) +
                    micro_batch * residual_bytes(config) / (machine.link.pair_gbs.value * 1e9));
      break;
    }
    case Parallelism::kExpert: {
      micro_batch = std::max(1.0, std::ceil(batch / gpus));
      const double busiest = busiest_share(distinct_experts(config, batch), experts, gpus);
      step.weight_bytes = active.replicated + active.sharded + active.routed * busiest / experts;
      step.cache_bytes = micro_batch * reads.total();
      share = micro_batch / batch;
      if (gpus > 1) {
        // Dispatch FP8 rows and combine BF16 rows, once each per layer.
        const double sent = micro_batch * static_cast<double>(config.num_experts_per_tok) *
                            static_cast<double>(config.hidden_size) * 3.0 * (gpus - 1) / gpus;
        step.message_seconds =
            2.0 * static_cast<double>(config.num_hidden_layers) * machine.all_reduce_seconds(gpus);
        if (assumptions.message_bytes)
          step.message_seconds += static_cast<double>(config.num_hidden_layers) * sent / link;
      }
      break;
    }
  }
  if (assumptions.resident_experts < 1) {
    const double missing = active.routed * distinct_experts(config, micro_batch) / experts *
                           (1 - assumptions.resident_experts) /
                           (parallelism == Parallelism::kExpert ? gpus : 1.0 / share);
    step.host_seconds = missing / (machine.link.host_gbs.value * 1e9) * rounds;
    step.weight_bytes -= missing;
  }
  const Flops work = token * (parallelism == Parallelism::kPipeline ? micro_batch * share : batch * share);
  step.flops = work.total();
  step.memory_seconds = (step.weight_bytes + step.cache_bytes) / bandwidth(machine, assumptions) * rounds;
  step.compute_seconds = compute_seconds(machine.gpu, work) * rounds;
  return step;
}

double Prefill::overlapped_seconds() const {
  return std::max({compute_seconds, weight_seconds, message_seconds});
}

Prefill prefill(const ModelFacts& model, const Machine& machine, Parallelism parallelism, int gpus,
                std::int64_t tokens) {
  const ModelConfig& config = model.config;
  const Flops flops = prefill_flops(config, tokens);
  const auto length = static_cast<double>(tokens);
  const auto layers = static_cast<double>(config.num_hidden_layers);
  Prefill result;
  result.tokens = length;
  result.flops = flops.total();
  result.compute_seconds = compute_seconds(machine.gpu, flops) / gpus;
  const double chunks = std::ceil(length / static_cast<double>(kPrefillChunkTokens));
  const ActiveBytes active = active_bytes(model.bytes);
  const double streamed =
      parallelism == Parallelism::kTensor     ? active.replicated + (active.sharded + active.routed) / gpus
      : parallelism == Parallelism::kPipeline ? (active.replicated + active.sharded + active.routed) / gpus
                                              : active.replicated + active.sharded + active.routed / gpus;
  result.weight_seconds = chunks * streamed / (machine.gpu.bandwidth_gbs.value * 1e9);
  if (gpus <= 1) return result;
  switch (parallelism) {
    case Parallelism::kTensor:
      result.message_seconds = 2 * layers * length * hidden_bytes(config) * ring_factor(gpus) /
                               machine.collective_bytes_per_second(gpus);
      break;
    case Parallelism::kPipeline: {
      // Boundaries are crossed while the next micro-chunk computes; what shows is filling the pipeline.
      const double micro_chunks =
          std::max(1.0, std::ceil(length / static_cast<double>(kPipelineChunkTokens)));
      const double hop = std::min(length, static_cast<double>(kPipelineChunkTokens)) *
                         residual_bytes(config) / (machine.link.pair_gbs.value * 1e9);
      result.bubble_seconds = (gpus - 1) * (result.compute_seconds / micro_chunks + hop);
      break;
    }
    case Parallelism::kExpert:
      result.message_seconds = layers * length / gpus * static_cast<double>(config.num_experts_per_tok) *
                               static_cast<double>(config.hidden_size) * 3.0 * (gpus - 1) / gpus /
                               machine.collective_bytes_per_second(gpus);
      break;
  }
  return result;
}

}  // namespace pivot
