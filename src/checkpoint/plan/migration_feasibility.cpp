// Layer 1: what carries over. Modules are judged by comparing the two tensor lists; the rest by what depends
// on them.
#include <fmt/format.h>

#include "checkpoint/plan/migration.h"

namespace pivot {

namespace {

Source header_source(const MigrationInput& input) {
  const char* a = input.a.headers ? "A's headers" : "A's config";
  const char* b = input.b.headers ? "B's headers" : "B's config";
  return {Basis::kComputed, fmt::format("tensor list of {} against {}", a, b)};
}

std::string evidence(const ModuleComparison& module) {
  if (module.equal() && module.tensors_a == 1) return "the one tensor has the same name, dtype and shape";
  if (module.equal())
    return fmt::format("all {} tensors have the same name, dtype and shape", module.tensors_a);
  return fmt::format("{} tensors agree in name, dtype and shape, {} differ, {} are only in A, {} only in B",
                     module.same, module.different, module.only_a, module.only_b);
}

// Geometry that kernels are specialised to.
std::string geometry_change(const ModelConfig& a, const ModelConfig& b) {
  std::string text;
  const auto compare = [&](const char* key, std::int64_t left, std::int64_t right) {
    if (left != right) text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", key, left, right);
  };
  compare("hidden_size", a.hidden_size, b.hidden_size);
  compare("num_hidden_layers", a.num_hidden_layers, b.num_hidden_layers);
  compare("num_attention_heads", a.num_attention_heads, b.num_attention_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("index_n_heads", a.index_n_heads, b.index_n_heads);
  compare("index_head_dim", a.index_head_dim, b.index_head_dim);
  compare("index_topk", a.index_topk, b.index_topk);
  compare("n_routed_experts", a.n_routed_experts, b.n_routed_experts);
  compare("moe_intermediate_size", a.moe_intermediate_size, b.moe_intermediate_size);
  if (a.compress_ratios != b.compress_ratios)
    text += fmt::format("{}layer schedule", text.empty() ? "" : ", ");
  return text;
}

struct Builder {
  const MigrationInput& input;
  Migration& migration;

  void add(std::string what, Port port, std::string why, Source source) {
    migration.feasibility.push_back({std::move(what), port, std::move(why), std::move(source)});
  }

  void module(std::string what, Module which, std::string unchanged, std::string changed) {
    const ModuleComparison& comparison = find_module(migration.modules, which);
    add(std::move(what), comparison.equal() ? Port::kUnchanged : Port::kWithChanges,
        fmt::format("{}; {}", evidence(comparison), comparison.equal() ? unchanged : changed),
        header_source(input));
  }
};

std::string expert_layout(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::kMxfp4:
      return "E2M1 codes with one E8M0 byte per 32 columns";
    case ExpertFormat::kNvfp4ModelOpt:
      return "E2M1 codes with one E4M3 byte per 16 columns and an F32 factor per matrix";
    case ExpertFormat::kNvfp4Compressed:
      return "E2M1 codes with one E4M3 byte per 16 columns and an F32 divisor per matrix";
    case ExpertFormat::kFp8E8m0:
      return "E4M3 codes with one E8M0 byte per 128x128 block";
    case ExpertFormat::kFp8F32:
      return "E4M3 codes with one F32 scale per 128x128 block";
    case ExpertFormat::kBf16:
      return "plain BF16";
    case ExpertFormat::kUnknown:
      break;
  }
  return "an unknown format";
}

void add_experts(Builder& build) {
  const MigrationInput& input = build.input;
  const ExpertFormat a = input.a.formats.experts;
  const ExpertFormat b = input.b.formats.experts;
  const ModuleComparison& module = find_module(build.migration.modules, Module::kRoutedExpert);
  if (a == b) {
    build.add("routed-expert grouped GEMM", module.equal() ? Port::kUnchanged : Port::kWithChanges,
              fmt::format("both store {}; {}", expert_layout(a), evidence(module)), header_source(input));
  } else {
    const bool both_fp4 =
        (is_nvfp4(a) || a == ExpertFormat::kMxfp4) && (is_nvfp4(b) || b == ExpertFormat::kMxfp4);
    build.add("routed-expert grouped GEMM", Port::kNo,
              fmt::format("A stores {}, B stores {}: scale type, block size and the epilogue change{}",
                          expert_layout(a), expert_layout(b),
                          both_fp4 ? ". Tiles, the work list over touched experts and the E2M1 unpacking "
                                     "(low nibble first on both sides) can be kept as a starting point"
                                   : ""),
              header_source(input));
    build.add("weight loader for experts", Port::kNo,
              fmt::format("{} tensors per expert matrix instead of {}; key on dtypes, not on config words",
                          is_nvfp4(b)                ? "4"
                          : b == ExpertFormat::kBf16 ? "1"
                                                     : "2",
                          is_nvfp4(a)                ? "4"
                          : a == ExpertFormat::kBf16 ? "1"
                                                     : "2"),
              header_source(input));
  }
  if (is_nvfp4(a) && b == ExpertFormat::kMxfp4)
    build.add("expert activation quantiser", Port::kNo,
              "an NVFP4 engine quantises expert inputs to FP4 (per 16, input_scale); the native model's are "
              "FP8 per 128 columns with E8M0 scales. The FP8 quantiser of the dense layers does it",
              {Basis::kPublicFact, "specification 3.4 and 4.3; DeepSeek reference inference"});
  if (a == ExpertFormat::kMxfp4 && is_nvfp4(b))
    build.add("expert activation quantiser", Port::kWithChanges,
              "NVFP4 kernels expect FP4 activations with input_scale; running them with FP8 activations is "
              "allowed and closer to the native model",
              {Basis::kPublicFact, "specification 4.3; NVIDIA ModelOpt exporter"});
  if (a == ExpertFormat::kMxfp4 && is_nvfp4(b))
    build.add("SwiGLU clamp in a fused expert kernel", Port::kWithChanges,
              "kernels that clamp before the global scales are applied must divide the limit by them",
              {Basis::kPublicFact, "github.com/sgl-project/sglang PR 25820"});
}

void add_draft(Builder& build) {
  const MigrationInput& input = build.input;
  const HeadKind a = input.a.formats.head;
  const HeadKind b = input.b.formats.head;
  if (a == b) {
    if (a == HeadKind::kNone) return;
    const bool same_format = input.a.formats.draft_experts == input.b.formats.draft_experts;
    build.add("speculative decoding", same_format ? Port::kUnchanged : Port::kWithChanges,
              fmt::format("both have a {} head of {} stage(s); its experts are {} in A and {} in B",
                          a == HeadKind::kMtp ? "plain MTP" : "DSpark", input.b.formats.draft_stages,
                          to_string(input.a.formats.draft_experts), to_string(input.b.formats.draft_experts)),
              header_source(input));
    return;
  }
  if (b == HeadKind::kNone) {
    build.add("speculative decoding", Port::kNo, "B stores no mtp.* tensors: there is nothing to draft with",
              header_source(input));
  } else if (b == HeadKind::kDspark) {
    build.add("speculative decoding", Port::kNo,
              fmt::format("A has {}, B has DSpark: {} stages that tap backbone layers, draft a block of 5 in "
                          "one pass and add a rank-256 bigram bias. Verification and roll-back of the window "
                          "rings port; the draft pass is new",
                          a == HeadKind::kMtp ? "one plain MTP block" : "no draft head",
                          input.b.formats.draft_stages),
              header_source(input));
  } else {
    build.add("speculative decoding", Port::kNo,
              "A has DSpark, B one plain MTP block: another draft pass and another verification width",
              header_source(input));
  }
}

void add_other_architecture(Builder& build) {
  const Source spec = {Basis::kPublicFact, "specification 1.3; transformers deepseek_v41 configuration"};
  build.add("attention, compressor and indexer kernels", Port::kNo,
            "compression ratios 0 / 2 / 1, compressors only in layers 2, 8, 14, 20, a two-level top-k and "
            "shared indices; FP4 KV with group 16",
            spec);
  build.add("hyper-connections", Port::kNo, "pre is computed by the previous sublayer and used by the next",
            spec);
  build.add("weight loader", Port::kNo,
            "nested text_config, 32x32 FP8 blocks, Engram tables of about 100 GB each, vision tower", spec);
  build.add("KV cache, prefix cache, prefill/decode hand-over", Port::kNo,
            "another row format and another set of components", spec);
  build.add(
      "FP4/FP8 grouped GEMM, rotary embedding, SwiGLU clamp, router, sparse-attention core, Sinkhorn, "
      "tokenizer",
      Port::kWithChanges, "the mathematics is the same, the shapes are not (384 experts x 2304, width 5120)",
      spec);
  build.add("systemd units, dashboards, alerts, load balancer", Port::kUnchanged, "they see HTTP and metrics",
            {Basis::kAssumption, "an engine that keeps its interfaces"});
}

}  // namespace

void add_feasibility(const MigrationInput& input, Migration& migration) {
  Builder build{input, migration};
  if (!migration.same_architecture) return add_other_architecture(build);
  const auto& config_a = input.a.inspection.config;
  const auto& config_b = input.b.inspection.config;
  const std::string changed = config_a && config_b ? geometry_change(*config_a, *config_b) : std::string();
  if (!changed.empty())
    build.add("kernels specialised to the geometry", Port::kWithChanges,
              fmt::format("the config changes {}", changed), {Basis::kComputed, "config.json of both"});

  build.module("sparse attention (decode and prefill), FP8 KV rows", Module::kAttention,
               "the row stays 448 E4M3 + 64 BF16 + 8 scale bytes", "re-check every projection's format");
  build.module("KV compressors (ratio 4 and 128)", Module::kCompressor,
               "pooling, ape and the fp32 states are untouched", "re-check the fused compressor");
  build.module(
      "indexer, index keys, top-k", Module::kIndexer,
      "Hadamard, FP4 (or FP8) keys, scoring and selection are untouched, and so is any fault in them",
      "re-check the indexer projections");
  build.module("hyper-connections (mHC) and their GEMM precision switches", Module::kHyperConnection,
               "same F32 matrices", "re-check the mHC matrices");
  build.module("router and hash routing", Module::kRouter, "same gate, bias and tables",
               "the router's shape or dtype changed");
  build.module("shared expert and dense FP8 GEMM", Module::kSharedExpert,
               "same 128x128 blocks and scale dtype",
               "the dense scale format changes: E8M0 and F32 scales need different epilogues");
  build.module("embedding and LM head", Module::kHead, "BF16 on both sides", "re-check the head");
  add_experts(build);
  add_draft(build);

  const Source structure = {Basis::kComputed,
                            "follows from the tensor lists: nothing else it depends on differs"};
  build.add("CUDA graphs of the decode step", Port::kWithChanges,
            "same nodes outside the experts; capture again, because kernels and weight addresses change",
            structure);
  build.add("tensor, pipeline and expert parallel split",
            input.a.formats.experts == input.b.formats.experts ? Port::kUnchanged : Port::kWithChanges,
            "attention splits as before; the experts' scale tensors must divide like their codes (per 32 or "
            "16 columns)",
            structure);
  build.add("KV cache format and paging", Port::kUnchanged,
            "row formats depend on the attention geometry alone", structure);
  build.add("cached prefixes and saved sessions", Port::kNo,
            "their numbers were computed by A: flush them, or key them by the checkpoint's fingerprint",
            {Basis::kComputed, "state is a function of weights"});
  build.add(
      "prefill/decode hand-over", Port::kUnchanged,
      "same components and byte layouts; both sides must serve the same checkpoint (compare fingerprints)",
      structure);
  const bool new_encoding = !same_lineage(input);
  build.add("chat encoding", new_encoding ? Port::kWithChanges : Port::kUnchanged,
            new_encoding ? "0731 has the reasoning efforts low, high, max (each with its own prefix), the "
                           "preview none, high, max; take the encoder that comes with the checkpoint"
                         : "same tokenizer and encoder",
            {Basis::kPublicFact, "specification 7; encoding scripts of both repositories"});
  build.add("run-time knobs (index_topk, index-key and KV precision, mHC precision)", Port::kUnchanged,
            "they act on modules that do not change; their defaults are the reference's", structure);
  build.add("systemd units, dashboards, alerts, load balancer", Port::kUnchanged,
            "they see HTTP and metrics; only the model path changes",
            {Basis::kAssumption, "an engine that keeps its interfaces"});
  build.add("recall probes and acceptance tests", Port::kUnchanged,
            "run the same set before and after; that comparison is the point",
            {Basis::kAssumption, "the same prompts and sampling on both sides"});
}

}  // namespace pivot
