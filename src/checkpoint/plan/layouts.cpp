#include "checkpoint/plan/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/report/units.h"

namespace pivot {

namespace {

using report::format_bytes;
using report::format_number;
using report::format_percent;
using report::format_rate;
using report::format_seconds;
using report::format_tokens;

bool tensor_parallel_possible(const ModelConfig& config, int gpus) {
  return config.num_attention_heads % gpus == 0 && config.o_groups % gpus == 0 &&
         config.moe_intermediate_size % gpus == 0;
}

MemoryOptions memory_options(const Workload& workload, double sequences) {
  MemoryOptions options;
  options.sequences = sequences;
  options.context_tokens = workload.context_tokens;
  return options;
}

// The most sequences, up to `wanted`, whose state fits one replica without pushing experts out; at least one
// is tried.
MemoryPlan plan_most(const ModelFacts& model, const Machine& machine, const Layout& layout,
                     const Workload& workload, double wanted, double& admitted) {
  admitted = std::max(1.0, wanted);
  MemoryOptions options = memory_options(workload, admitted);
  options.offload = false;
  MemoryPlan plan = plan_memory(model, machine, layout.parallelism, layout.gpus, options);
  if (plan.fits()) return plan;
  double low = 0;
  double high = admitted;
  while (high - low > 1) {
    const double middle = std::floor((low + high) / 2);
    options.sequences = middle;
    plan = plan_memory(model, machine, layout.parallelism, layout.gpus, options);
    (plan.fits() ? low : high) = middle;
  }
  admitted = std::max(1.0, low);
  options.sequences = admitted;
  options.offload = true;  // one sequence: experts may move to host memory for it
  return plan_memory(model, machine, layout.parallelism, layout.gpus, options);
}

const Evaluation* find(const std::vector<Evaluation>& evaluations, Parallelism parallelism, int gpus) {
  for (const Evaluation& evaluation : evaluations)
    if (!evaluation.arrangement.prefill && evaluation.arrangement.decode.parallelism == parallelism &&
        evaluation.arrangement.decode.gpus == gpus)
      return &evaluation;
  return nullptr;
}

// Why TP over all GPUs is, or is not, worth it: the figures that decide.
void add_tensor_parallel_reasons(const ModelFacts& model, const Machine& machine,
                                 const std::vector<Evaluation>& evaluations, const Evaluation& best,
                                 std::vector<std::string>& reasons) {
  const int all = machine.num_gpus;
  const Evaluation* whole = find(evaluations, Parallelism::kTensor, all);
  if (whole == nullptr || all < 4 || !whole->fits) return;
  const auto replicated = static_cast<double>(model.bytes.replicated() - model.bytes.of(Module::kEmbedding) -
                                              model.bytes.of(Module::kHashTable));
  const Evaluation* half = find(evaluations, Parallelism::kTensor, all / 2);
  if (half != nullptr && half->fits)
    reasons.push_back(fmt::format(
        "One stream gains {} from TP{} over TP{}: {} against {} tok/s. Every rank reads {} of small matrices "
        "that are not split ({} of "
        "TP{}'s bytes), and each of the {} all-reduces of a step takes {} us instead of {}.",
        format_percent(whole->single.tokens_per_second() / half->single.tokens_per_second() - 1), all,
        all / 2, format_rate(whole->single.tokens_per_second()),
        format_rate(half->single.tokens_per_second()), format_bytes(replicated),
        format_percent(replicated / whole->single.weight_bytes), all, 2 * model.config.num_hidden_layers + 1,
        format_number(machine.all_reduce_seconds(all) * 1e6),
        format_number(machine.all_reduce_seconds(all / 2) * 1e6)));
  if (best.arrangement.decode.gpus != all)
    reasons.push_back(fmt::format(
        "TP{} prefill stops at {} tok/s: a prompt token moves {} through each link ({} of {} s for this "
        "prompt are messages). {} reaches {}.",
        all, format_rate(whole->total_prefill_tokens_per_second),
        format_bytes(whole->prompt.message_seconds / whole->prompt.tokens *
                     machine.collective_bytes_per_second(all)),
        format_number(whole->prompt.message_seconds), format_number(whole->prompt.steady_seconds()),
        best.arrangement.name(), format_rate(best.total_prefill_tokens_per_second)));
}

}  // namespace

std::string Arrangement::name() const {
  if (!prefill) return decode.name();
  return prefill->name() + " prefill + " + decode.name() + " decode";
}

std::vector<Arrangement> arrangements(const ModelConfig& config, const Machine& machine) {
  std::vector<Arrangement> list;
  const int all = machine.num_gpus;
  for (int gpus = 1; gpus <= all; gpus *= 2) {
    if (all % gpus != 0 || !tensor_parallel_possible(config, gpus)) continue;
    list.push_back({{Parallelism::kTensor, gpus, all / gpus}, std::nullopt});
  }
  for (int gpus = 2; gpus <= all; gpus *= 2) {
    if (all % gpus != 0) continue;
    if (gpus <= config.num_hidden_layers)
      list.push_back({{Parallelism::kPipeline, gpus, all / gpus}, std::nullopt});
    if (config.n_routed_experts % gpus == 0)
      list.push_back({{Parallelism::kExpert, gpus, all / gpus}, std::nullopt});
  }
  // Prefill on its own GPUs: as pipelines of half the machine or less, decode by TP on the rest.
  for (int prefill_gpus = all / 4; prefill_gpus >= 1 && prefill_gpus <= all * 3 / 4;
       prefill_gpus += std::max(1, all / 4)) {
    if (all < 4 || prefill_gpus > config.num_hidden_layers) continue;
    const int rest = all - prefill_gpus;
    for (int gpus = 2; gpus <= rest; gpus *= 2) {
      if (rest % gpus != 0 || !tensor_parallel_possible(config, gpus)) continue;
      list.push_back(
          {{Parallelism::kTensor, gpus, rest / gpus}, Layout{Parallelism::kPipeline, prefill_gpus, 1}});
    }
  }
  return list;
}

Evaluation evaluate(const ModelFacts& model, const Machine& machine, const Arrangement& arrangement,
                    const Workload& workload) {
  Evaluation result;
  result.arrangement = arrangement;
  const Layout& decode = arrangement.decode;
  const double wanted = std::ceil(static_cast<double>(workload.concurrency) / decode.replicas);
  double admitted = 0;
  result.memory = plan_most(model, machine, decode, workload, wanted, admitted);
  result.fits = result.memory.fits();
  if (!result.fits) {
    result.obstacle = fmt::format("needs {} per GPU with one {}-token sequence, {} are there",
                                  format_bytes(static_cast<double>(result.memory.total())),
                                  format_tokens(static_cast<double>(workload.context_tokens)),
                                  format_bytes(static_cast<double>(result.memory.available)));
  }
  result.admitted = std::min(static_cast<double>(workload.concurrency), admitted * decode.replicas);
  result.capacity_tokens = result.memory.capacity_tokens * decode.replicas;
  DecodeAssumptions assumptions;
  assumptions.resident_experts = result.memory.resident_experts;
  const auto context = static_cast<double>(workload.context_tokens);
  result.single = decode_step(model, machine, decode.parallelism, decode.gpus, 1, context, assumptions);
  result.loaded =
      decode_step(model, machine, decode.parallelism, decode.gpus, admitted, context, assumptions);
  result.total_decode_tokens_per_second = result.loaded.tokens_per_second() * decode.replicas;

  const Layout& prefiller = arrangement.prefill ? *arrangement.prefill : decode;
  result.prompt = prefill(model, machine, prefiller.parallelism, prefiller.gpus, workload.prompt_tokens());
  if (result.memory.resident_experts < 1) {
    // Every chunk fetches the experts that are not resident.
    const double chunks = std::ceil(result.prompt.tokens / static_cast<double>(kPrefillChunkTokens));
    result.prompt.message_seconds += chunks * static_cast<double>(result.memory.host_bytes) / decode.gpus /
                                     (machine.link.host_gbs.value * 1e9);
  }
  result.total_prefill_tokens_per_second = result.prompt.tokens_per_second() * prefiller.replicas;
  const auto outputs = static_cast<double>(workload.output_tokens);
  const double decode_seconds = outputs * result.loaded.seconds();
  if (arrangement.prefill) {
    MemoryOptions options = memory_options(workload, 1);
    options.offload = false;
    options.draft = false;
    result.prefill_memory = plan_memory(model, machine, prefiller.parallelism, prefiller.gpus, options);
    if (!result.prefill_memory->fits()) {
      result.fits = false;
      result.obstacle = fmt::format("a prefill GPU needs {}, {} are there",
                                    format_bytes(static_cast<double>(result.prefill_memory->total())),
                                    format_bytes(static_cast<double>(result.prefill_memory->available)));
    }
    const CacheBytes cache = cache_bytes(model.config, model.cache, model.draft_stages);
    result.transfer_seconds =
        (cache.per_token() * result.prompt.tokens + static_cast<double>(cache.per_sequence())) /
        (machine.link.pair_gbs.value * 1e9);
    result.requests_per_second = std::min(result.total_prefill_tokens_per_second / result.prompt.tokens,
                                          admitted * decode.replicas / decode_seconds);
  } else {
    // A replica alternates: the prompts of its admitted requests, then their answers together.
    result.requests_per_second =
        admitted * decode.replicas / (admitted * result.prompt.steady_seconds() + decode_seconds);
  }
  result.first_token_seconds = result.prompt.first_token_seconds() + result.transfer_seconds;
  return result;
}

std::optional<Recommendation> recommend(const ModelFacts& model, const Machine& machine,
                                        const Workload& workload,
                                        const std::vector<Evaluation>& evaluations) {
  constexpr double kTie = 0.98;  // within this share of the most requests the faster single stream wins
  std::optional<Recommendation> result;
  const auto resident = [&](std::size_t i) { return evaluations[i].memory.resident_experts >= 1; };
  const auto requests = [&](std::size_t i) { return evaluations[i].requests_per_second; };
  const auto stream = [&](std::size_t i) { return evaluations[i].single.tokens_per_second(); };
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    if (!evaluations[i].fits) continue;
    if (!result) result = Recommendation{i, i, {}};
    if (resident(i) != resident(result->best) ? resident(i) : requests(i) > requests(result->best))
      result->best = i;
    if (stream(i) > stream(result->fastest_stream)) result->fastest_stream = i;
  }
  if (!result) return result;
  const std::size_t most = result->best;
  for (std::size_t i = 0; i < evaluations.size(); ++i)
    if (evaluations[i].fits && resident(i) == resident(most) && requests(i) >= kTie * requests(most) &&
        stream(i) > stream(result->best))
      result->best = i;
  const Evaluation& best = evaluations[result->best];
  std::vector<std::string>& reasons = result->reasons;
  reasons.push_back(
      fmt::format("{} serves {} requests/s of this workload ({} prompt + {} answer tokens, {} at once) at "
                  "its roofline: prefill {} tok/s, decode {} tok/s in all.",
                  best.arrangement.name(), format_number(best.requests_per_second),
                  format_tokens(static_cast<double>(workload.prompt_tokens())), workload.output_tokens,
                  format_number(best.admitted), format_rate(best.total_prefill_tokens_per_second),
                  format_rate(best.total_decode_tokens_per_second)));
  const Evaluation* second = nullptr;
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    if (i == result->best || !evaluations[i].fits) continue;
    if (second == nullptr || evaluations[i].requests_per_second > second->requests_per_second)
      second = &evaluations[i];
  }
  if (second != nullptr)
    reasons.push_back(fmt::format("The next best is {} with {} requests/s ({} of it).",
                                  second->arrangement.name(), format_number(second->requests_per_second),
                                  format_percent(second->requests_per_second / best.requests_per_second)));
  add_tensor_parallel_reasons(model, machine, evaluations, best, reasons);
  if (best.admitted < workload.concurrency)
    reasons.push_back(fmt::format("KV memory admits {} of the {} requests at once; the others wait.",
                                  format_number(best.admitted), workload.concurrency));
  else
    reasons.push_back(fmt::format("KV memory holds {} tokens in all, {} times this workload.",
                                  format_tokens(static_cast<double>(best.capacity_tokens)),
                                  format_number(static_cast<double>(best.capacity_tokens) /
                                                (static_cast<double>(workload.concurrency) *
                                                 static_cast<double>(workload.context_tokens)))));
  if (best.memory.resident_experts < 1)
    reasons.push_back(
        fmt::format("The weights do not fit: {} of the routed experts stay on the GPU, {} go to host memory, "
                    "and every token fetches "
                    "what it misses over a {} GB/s link. One more GPU is worth more than any tuning.",
                    format_percent(best.memory.resident_experts),
                    format_bytes(static_cast<double>(best.memory.host_bytes)),
                    format_number(machine.link.host_gbs.value)));
  const Evaluation& fastest = evaluations[result->fastest_stream];
  if (result->fastest_stream != result->best)
    reasons.push_back(
        fmt::format("For one stream alone {} is fastest: {} tok/s against {}; a first token of this prompt "
                    "takes {} against {}.",
                    fastest.arrangement.name(), format_rate(fastest.single.tokens_per_second()),
                    format_rate(best.single.tokens_per_second()), format_seconds(fastest.first_token_seconds),
                    format_seconds(best.first_token_seconds)));
  return result;
}

}  // namespace pivot
