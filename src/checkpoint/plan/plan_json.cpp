#include <nlohmann/json.hpp>

#include "checkpoint/plan/plan.h"

namespace pivot {

namespace {

using nlohmann::ordered_json;

ordered_json memory_json(const MemoryPlan& memory) {
  ordered_json classes = ordered_json::object();
  for (int c = 0; c < kNumMemoryClasses; ++c)
    classes[std::string(memory_class_name(static_cast<MemoryClass>(c)))] =
        memory.of(static_cast<MemoryClass>(c));
  return {{"bytes", classes},
          {"total_bytes", memory.total()},
          {"available_bytes", memory.available},
          {"fits", memory.fits()},
          {"resident_experts", memory.resident_experts},
          {"host_bytes", memory.host_bytes},
          {"bytes_per_token", memory.bytes_per_token},
          {"bytes_per_sequence", memory.bytes_per_sequence},
          {"capacity_tokens", memory.capacity_tokens}};
}

ordered_json layout_json(const Layout& layout) {
  return {
      {"parallelism", to_string(layout.parallelism)}, {"gpus", layout.gpus}, {"replicas", layout.replicas}};
}

ordered_json step_json(const DecodeStep& step) {
  return {{"batch", step.batch},
          {"weight_bytes", step.weight_bytes},
          {"cache_bytes", step.cache_bytes},
          {"flops", step.flops},
          {"memory_seconds", step.memory_seconds},
          {"compute_seconds", step.compute_seconds},
          {"message_seconds", step.message_seconds},
          {"host_seconds", step.host_seconds},
          {"seconds", step.seconds()},
          {"tokens_per_second", step.tokens_per_second()}};
}

ordered_json prefill_json(const Prefill& prompt) {
  return {{"tokens", prompt.tokens},
          {"flops", prompt.flops},
          {"compute_seconds", prompt.compute_seconds},
          {"weight_seconds", prompt.weight_seconds},
          {"message_seconds", prompt.message_seconds},
          {"bubble_seconds", prompt.bubble_seconds},
          {"seconds", prompt.steady_seconds()},
          {"first_token_seconds", prompt.first_token_seconds()},
          {"tokens_per_second", prompt.tokens_per_second()}};
}

ordered_json evaluation_json(const Evaluation& one) {
  ordered_json json;
  json["name"] = one.arrangement.name();
  json["decode_layout"] = layout_json(one.arrangement.decode);
  json["prefill_layout"] =
      one.arrangement.prefill ? layout_json(*one.arrangement.prefill) : ordered_json(nullptr);
  json["fits"] = one.fits;
  json["obstacle"] = one.obstacle;
  json["memory"] = memory_json(one.memory);
  json["prefill_memory"] = one.prefill_memory ? memory_json(*one.prefill_memory) : ordered_json(nullptr);
  json["admitted"] = one.admitted;
  json["capacity_tokens"] = one.capacity_tokens;
  json["single"] = step_json(one.single);
  json["loaded"] = step_json(one.loaded);
  json["decode_tokens_per_second"] = one.total_decode_tokens_per_second;
  json["prompt"] = prefill_json(one.prompt);
  json["prefill_tokens_per_second"] = one.total_prefill_tokens_per_second;
  json["transfer_seconds"] = one.transfer_seconds;
  json["first_token_seconds"] = one.first_token_seconds;
  json["requests_per_second"] = one.requests_per_second;
  return json;
}

ordered_json figure_json(const Figure& figure) {
  return {{"value", figure.value}, {"basis", figure.basis}, {"source", figure.source}};
}

}  // namespace

std::string plan_json(const Plan& plan) {
  ordered_json json;
  json["schema"] = "pivot.plan/1";
  json["label"] = plan.label;
  json["bytes_basis"] = plan.bytes_basis;
  ordered_json modules = ordered_json::object();
  for (int m = 0; m < kNumModules; ++m)
    modules[std::string(module_name(static_cast<Module>(m)))] = plan.model.bytes.of(static_cast<Module>(m));
  json["weights"] = {{"total_bytes", plan.model.bytes.total()},
                     {"backbone_bytes", plan.model.bytes.backbone()},
                     {"draft_bytes", plan.model.bytes.draft()},
                     {"replicated_bytes", plan.model.bytes.replicated()},
                     {"backbone_modules", modules},
                     {"expert_format", to_string(plan.formats.experts)}};
  const CacheBytes cache = cache_bytes(plan.model.config, plan.model.cache, plan.model.draft_stages);
  json["cache"] = {{"kv", to_string(plan.model.cache.kv)},
                   {"index", to_string(plan.model.cache.index)},
                   {"ratio4_bytes_per_token", cache.ratio4_per_token},
                   {"ratio128_bytes_per_token", cache.ratio128_per_token},
                   {"index_bytes_per_token", cache.index_per_token},
                   {"bytes_per_token", cache.per_token()},
                   {"padding_bytes_per_token", cache.padding_per_token},
                   {"ring_bytes", cache.rings},
                   {"draft_ring_bytes", cache.draft_rings},
                   {"compressor_state_bytes", cache.compressor_state}};
  json["machine"] = {{"gpu", plan.machine.gpu.id},
                     {"gpus", plan.machine.num_gpus},
                     {"link", plan.machine.link.id},
                     {"numa_nodes", plan.machine.numa_nodes},
                     {"origin", plan.machine.origin},
                     {"memory_gib", figure_json(plan.machine.gpu.memory_gib)},
                     {"bandwidth_gbs", figure_json(plan.machine.gpu.bandwidth_gbs)},
                     {"fp8_tflops", figure_json(plan.machine.gpu.fp8_tflops)},
                     {"bf16_tflops", figure_json(plan.machine.gpu.bf16_tflops)}};
  json["workload"] = {{"context_tokens", plan.workload.context_tokens},
                      {"output_tokens", plan.workload.output_tokens},
                      {"concurrency", plan.workload.concurrency}};
  json["layouts"] = ordered_json::array();
  for (const Evaluation& one : plan.evaluations) json["layouts"].push_back(evaluation_json(one));
  if (plan.recommendation) {
    json["recommendation"] = {
        {"best", plan.evaluations[plan.recommendation->best].arrangement.name()},
        {"fastest_stream", plan.evaluations[plan.recommendation->fastest_stream].arrangement.name()},
        {"reasons", plan.recommendation->reasons}};
  } else {
    json["recommendation"] = nullptr;
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace pivot
