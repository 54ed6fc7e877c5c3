#include "checkpoint/plan/plan.h"

#include "checkpoint/identify.h"

namespace pivot {

Result<ModelFacts> model_facts(const Subject& subject, const CacheFormats& cache,
                               CheckpointFormats& formats) {
  if (!subject.config_text())
    return fail(ErrorCode::kNotFound,
                "{} has no config.json, so its geometry is unknown; fetch it, or name one with --config",
                subject.label());
  const Identification id =
      identify(*subject.config_text(), subject.table(), subject.hf_quant_text().value_or(""));
  if (subject.has_headers() && !id.supported)
    return fail(ErrorCode::kUnsupported, "{} cannot be planned: {}", subject.label(), id.refusal);
  ModelFacts facts;
  PIVOT_TRY(facts.config, parse_model_config(*subject.config_text(), subject.label() + ": config.json"));
  facts.cache = cache;
  if (subject.has_headers()) {
    formats = formats_of(id);
    facts.bytes = model_bytes(subject.table());
  } else {
    formats = guess_formats(facts.config, *subject.config_text());
    facts.bytes = model_bytes(stored_tensors(facts.config, formats));
  }
  facts.draft_stages = formats.draft_stages;
  return facts;
}

Result<Plan> make_plan(const Subject& subject, const Machine& machine, const Workload& workload,
                       const CacheFormats& cache) {
  Plan plan;
  plan.label = subject.label();
  plan.machine = machine;
  plan.workload = workload;
  PIVOT_TRY(plan.model, model_facts(subject, cache, plan.formats));
  plan.bytes_basis = subject.has_headers() ? "measured: tensor headers" : "computed from config.json";
  const std::int64_t longest = plan.model.config.max_position_embeddings;
  if (workload.context_tokens > longest)
    return fail(ErrorCode::kInvalidArgument,
                "--context {} is longer than the {} tokens that this model has positions for",
                workload.context_tokens, longest);
  if (workload.output_tokens < 1 || workload.output_tokens >= workload.context_tokens)
    return fail(ErrorCode::kInvalidArgument, "--output {} must be at least 1 and shorter than --context {}",
                workload.output_tokens, workload.context_tokens);
  if (workload.concurrency < 1)
    return fail(ErrorCode::kInvalidArgument, "--concurrency {} must be at least 1", workload.concurrency);
  for (const Arrangement& arrangement : arrangements(plan.model.config, machine))
    plan.evaluations.push_back(evaluate(plan.model, machine, arrangement, workload));
  plan.recommendation = recommend(plan.model, machine, workload, plan.evaluations);
  return plan;
}

}  // namespace pivot
