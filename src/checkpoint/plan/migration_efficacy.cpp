// Layer 2: what differs in numbers, and which complaints that can cure.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/report/units.h"
#include "checkpoint/plan/migration.h"

namespace pivot {

namespace {

using report::format_percent;
using report::format_rate;
using report::format_tokens;

constexpr const char* kExporter =
    "NVIDIA ModelOpt DeepSeek-V4 exporter (public source); github.com/vllm-project/recipes PR 541";

bool lossless_in_a(const MigrationInput& input) {
  const auto& facts = input.a.inspection.nvfp4;
  return facts && facts->checked > 0 && facts->lossless == facts->checked;
}

void add_measured(const MigrationInput& input, Migration& migration) {
  const Source source = {Basis::kMeasured, input.diff->complete
                                               ? "pivot diff of A and B"
                                               : "pivot diff of A and B, interrupted: partial"};
  migration.components.push_back({input.diff->verdict + ".", source});
  for (const MeasuredModule& module : input.diff->modules) {
    std::string text = fmt::format("{}{}: {}", module.draft ? "draft " : "", module.module, module.counts);
    if (module.snr_db) text += fmt::format(", SNR {:.1f} dB", *module.snr_db);
    migration.components.push_back({text + ".", source});
  }
}

void add_known(const MigrationInput& input, Migration& migration) {
  const Source headers = {Basis::kComputed, "tensor lists of both sides"};
  std::string stored_differently;
  for (const ModuleComparison& module : migration.modules) {
    if (module.absent() || module.equal()) continue;
    stored_differently += fmt::format("{}{}{}", stored_differently.empty() ? "" : ", ",
                                      module.draft ? "draft: " : "", module_name(module.module));
  }
  migration.components.push_back(
      {stored_differently.empty()
           ? "Both sides store the same tensors in the same formats."
           : fmt::format("Stored differently: {}. Everything else has the same names, dtypes and shapes.",
                         stored_differently),
       headers});
  if (!same_lineage(input))
    migration.components.push_back(
        {"The two come from different post-training (preview and 0731, or a DSpark release): values of every "
         "module may differ, also where the format is the same. That is a change of model, not of format.",
         {Basis::kPublicFact,
          "model cards of deepseek-ai/DeepSeek-V4-Flash and -0731: same architecture, new post-training"}});
  else if (is_nvfp4(input.a.formats.experts) != is_nvfp4(input.b.formats.experts))
    migration.components.push_back(
        {"Only the routed experts of the backbone are re-encoded; attention, compressor, indexer, router, "
         "shared expert, hyper-connections and the draft head are declared byte-identical.",
         {Basis::kPublicFact, kExporter}});
  if (is_nvfp4(input.a.formats.experts) || is_nvfp4(input.b.formats.experts)) {
    if (lossless_in_a(input)) {
      migration.components.push_back(
          {fmt::format("A's NVFP4 experts are a lossless cast ({} of {} matrices looked at): the weights "
                       "have the values of their native source, only the intended activations are coarser "
                       "(FP4 per 16 instead of FP8 per 128).",
                       input.a.inspection.nvfp4->lossless, input.a.inspection.nvfp4->checked),
           {Basis::kMeasured, "pivot inspect of A"}});
    } else if (input.a.inspection.nvfp4) {
      migration.components.push_back(
          {fmt::format("A's NVFP4 experts are NOT a lossless cast: {}.", input.a.inspection.nvfp4->example),
           {Basis::kMeasured, "pivot inspect of A"}});
    } else {
      migration.components.push_back(
          {"NVIDIA's preview copy ships a log of 33,792 expert matrices cast without loss, so its weights "
           "are expected to equal their source's; what differs is the activation precision that NVFP4 "
           "engines use (FP4 per 16 instead of FP8 per 128).",
           {Basis::kPublicFact,
            "public reproduction notes of the flashinfer MoE-EP work; to be verified per copy"}});
    }
  }
}

// Where the selection begins to drop anything, and why that is the recall threshold.
std::string recall_reason(const MigrationInput& input, const Migration& migration) {
  const auto& config = input.a.inspection.config;
  const std::int64_t top_k = config ? config->index_topk : 512;
  const bool indexer_same = find_module(migration.modules, Module::kIndexer).equal() &&
                            find_module(migration.modules, Module::kCompressor).equal();
  return fmt::format(
      "The indexer keeps {} entries of 4 tokens, so up to {} tokens nothing is ever dropped and any fault of "
      "it is invisible; a loss that starts at 2-4K tokens is the signature of broken index scores (rotation "
      "on one side, "
      "scale or layout mix-up, a top-k that loses candidates), not of expert precision. {} Raising top-k to "
      "1024 moves the cliff to {} tokens and repairs nothing. Needles were recalled at 198K to 1.03M tokens "
      "with top-k 512 and FP8 or FP4 "
      "rows on the same cards",
      top_k, format_tokens(static_cast<double>(4 * top_k)),
      indexer_same
          ? "Indexer and compressor are stored the same on both sides, so the engine's fault moves along."
          : "The indexer's tensors differ between the two, so test before concluding.",
      4 * 1024);
}

void add_speed(const MigrationInput& input, Migration& migration) {
  if (!input.a.plan || !input.b.plan || !input.a.plan->recommendation || !input.b.plan->recommendation)
    return;
  const Evaluation& a = input.a.plan->evaluations[input.a.plan->recommendation->best];
  const Evaluation& b = input.b.plan->evaluations[input.b.plan->recommendation->best];
  const double gain = b.total_decode_tokens_per_second / a.total_decode_tokens_per_second - 1;
  migration.complaints.push_back(
      {"decode is slow",
       std::fabs(gain) >= 0.10 ? (gain > 0 ? Cure::kPartly : Cure::kNo) : Cure::kNo,
       fmt::format(
           "the roofline of this machine goes from {} to {} tok/s in all ({}{}) without speculation, because "
           "expert bytes change; measured engines reach a fraction of either, so the engine is the lever",
           format_rate(a.total_decode_tokens_per_second), format_rate(b.total_decode_tokens_per_second),
           gain >= 0 ? "+" : "", format_percent(gain)),
       {Basis::kComputed,
        "decode roofline of both plans; sglang reports NVFP4 and native within 2% of each other on B200"}});
  migration.complaints.push_back(
      {"too little KV memory",
       b.capacity_tokens > a.capacity_tokens * 1.1 ? Cure::kPartly : Cure::kNo,
       fmt::format("KV capacity goes from {} ({}) to {} tokens ({}) on this machine",
                   format_tokens(static_cast<double>(a.capacity_tokens)), a.arrangement.name(),
                   format_tokens(static_cast<double>(b.capacity_tokens)), b.arrangement.name()),
       {Basis::kComputed, "memory plan of both sides"}});
}

}  // namespace

void add_efficacy(const MigrationInput& input, Migration& migration) {
  if (!migration.same_architecture) {
    migration.components.push_back(
        {"Another architecture: every component differs, and no per-tensor comparison is meaningful.",
         {Basis::kPublicFact, "specification 1.3"}});
    return;
  }
  if (input.diff)
    add_measured(input, migration);
  else
    add_known(input, migration);

  auto& complaints = migration.complaints;
  const ExpertFormat a = input.a.formats.experts;
  const ExpertFormat b = input.b.formats.experts;
  complaints.push_back({"facts are lost beyond 2-4K tokens",
                        Cure::kNotByItself,
                        recall_reason(input, migration),
                        {Basis::kPublicFact,
                         "ROCm/ATOM issue 1507, vLLM issue 52109 and sglang PR 37893 (causes); vLLM PR 41834 "
                         "and rtx6kpro notes (recall at length); arithmetic of specification 2.6"}});
  complaints.push_back(
      {"the same, blamed on FP8 KV",
       Cure::kNotByItself,
       "the packed row is bit-exact with respect to DeepSeek's reference, which rounds every row to that "
       "grid before it uses it; a uniform FP8 row (RoPE part also FP8) would not be",
       {Basis::kPublicFact, "specification 5.1; DeepSeek reference inference, FlashMLA packed layout"}});
  if (is_nvfp4(a))
    complaints.push_back(
        {"the same, blamed on NVFP4 experts",
         Cure::kNotByItself,
         "the embedded model (trained on recall, same architecture) finds as many needles at 4K and 16K "
         "tokens with native FP4, NVFP4 with FP4 activations, and BF16 experts; that is evidence about the "
         "mechanism, not about the big model's thresholds",
         {Basis::kMeasured, "models/needle/README.md, ablation table (evaluation/eval.json)"}});
  if (is_nvfp4(a) && !is_nvfp4(b)) {
    const bool lossy = input.a.inspection.nvfp4 && !lossless_in_a(input);
    complaints.push_back(
        {"answers are slightly worse than the vendor's",
         Cure::kPartly,
         lossy ? "A's weights were re-quantised, and an NVFP4 engine rounds expert inputs to FP4 as well; B "
                 "removes both"
               : "an NVFP4 engine rounds expert inputs to FP4 per 16; the native path keeps FP8 per 128. B "
                 "removes that; the weights themselves gain nothing if A is the lossless cast",
         {lossy ? Basis::kMeasured : Basis::kPublicFact,
          lossy ? "pivot inspect of A" : "specification 4.3"}});
    complaints.push_back({"no qualified recipe on these cards",
                          Cure::kPartly,
                          "the published SM120 recipes are qualified on the native checkpoint only",
                          {Basis::kPublicFact, "sglang SM120 images 0.8.x and the rtx6kpro wiki"}});
  } else if (!is_nvfp4(a) && is_nvfp4(b)) {
    complaints.push_back({"answers are slightly worse than the vendor's",
                          Cure::kNo,
                          "NVFP4 engines round expert inputs to FP4, which is coarser than the native FP8",
                          {Basis::kPublicFact, "specification 4.3"}});
  }
  if (!same_lineage(input) && input.b.formats.head == HeadKind::kDspark) {
    complaints.push_back({"agents make poor use of tools",
                          Cure::kPartly,
                          "0731's post-training reports large gains in agentic tasks; leaked or lost "
                          "tool-call markup is a parser's fault and stays",
                          {Basis::kPublicFact, "0731 model card; vLLM issue 40801 (parser)"}});
    complaints.push_back({"one stream is slow",
                          Cure::kPartly,
                          "DSpark drafts 5 tokens a pass and gives 1.8 to 2.3x for a single stream in "
                          "published runs; depth must be tuned under load",
                          {Basis::kPublicFact, "published sglang and vLLM runs on SM120"}});
  }
  if (input.a.formats.head != HeadKind::kNone && input.a.formats.draft_experts != input.a.formats.experts)
    complaints.push_back(
        {"drafted tokens are hardly ever accepted (0.1)",
         b == input.b.formats.draft_experts ? Cure::kPartly : Cure::kNo,
         fmt::format("A's draft experts are {} beside {} in the backbone; a loader that takes one format for "
                     "the whole file mis-reads them. B {}",
                     to_string(input.a.formats.draft_experts), to_string(a),
                     b == input.b.formats.draft_experts ? "has one format, which hides that fault"
                                                        : "mixes formats too"),
         {Basis::kPublicFact, "vLLM PR 49133"}});
  add_speed(input, migration);
  complaints.push_back({"the last digit is wrong at every fourth prompt length",
                        Cure::kNo,
                        "seen with several checkpoints and engines and absent with one provider: a property "
                        "of engines at the border of a group of four",
                        {Basis::kPublicFact, "vLLM issue 55927"}});
  complaints.push_back({"very long agent sessions loop",
                        Cure::kNo,
                        "reported for 0731 on several independent engines too",
                        {Basis::kPublicFact, "llama.cpp issue 26694"}});
  complaints.push_back({"no prefix-cache hits, leaked tool-call text, memory errors under load",
                        Cure::kNo,
                        "faults of the serving engine, untouched by the weights",
                        {Basis::kPublicFact, "sglang issue 35129, vLLM issues 42948 and 40801"}});
}

}  // namespace pivot
