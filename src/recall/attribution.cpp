#include "recall/attribution.h"

#include <algorithm>

#include "engine/devices.h"
#include "recall/exact_index.h"

namespace pivot::recall {
namespace {

constexpr std::int32_t kLongStepTokens = 4096;
constexpr std::int32_t kOddStepTokens = 63;

std::string_view to_words(IndexPrecision format) {
  return format == IndexPrecision::kFp4 ? "FP4" : format == IndexPrecision::kFp8 ? "FP8" : "BF16";
}
std::string_view to_words(ActQuant format) {
  return format == ActQuant::kFp8 ? "FP8" : format == ActQuant::kNvfp4 ? "NVFP4" : "BF16";
}

std::int32_t own_topk(const AttributionSubject& subject) {
  return subject.knobs.index_topk == kTopkFromCheckpoint
             ? static_cast<std::int32_t>(subject.weights->config.index_topk)
             : subject.knobs.index_topk;
}

std::vector<Variant> variants_of(const AttributionSubject& subject) {
  std::vector<Variant> variants;
  const auto add = [&](Suspect suspect, std::string name, std::string cause) -> Variant& {
    return variants.emplace_back(
        Variant{std::move(name), std::move(cause), suspect, "", subject.knobs, subject.chunk_tokens});
  };
  const Knobs& own = subject.knobs;
  add(Suspect::kRestore, "after a restore", "saving and restoring state");
  add(Suspect::kBackend, "oracle back-end", "the back-end's arithmetic");
  const std::int32_t topk = own_topk(subject);
  if (topk > 0) {
    Variant& all = add(Suspect::kSelection, "all entries attended",
                       fmt::format("leaving entries out (index_topk {})", topk));
    all.knobs.index_topk = kTopkAll;
    all.setting = "index_topk=all";
    const std::string_view format = to_words(own.index_keys);
    add(Suspect::kExactIndex, "exact index", fmt::format("what the index rounds ({} keys)", format));
    for (const IndexPrecision other : {IndexPrecision::kBf16, IndexPrecision::kFp8, IndexPrecision::kFp4}) {
      if (other == own.index_keys) continue;
      const std::string word = knob_value(
          [&] {
            Knobs knobs;
            knobs.index_keys = other;
            return knobs;
          }(),
          "index_keys");
      Variant& keys =
          add(Suspect::kKeyFormat, "index keys " + word, fmt::format("the {} format of index keys", format));
      keys.knobs.index_keys = other;
      keys.setting = "index_keys=" + word;
    }
    const auto add_topk = [&](Suspect suspect, std::int32_t count) {
      if (count < 1) return;
      Variant& sized = add(suspect, fmt::format("index_topk {}", count),
                           fmt::format("too small an index_topk ({})", topk));
      sized.knobs.index_topk = count;
      sized.setting = fmt::format("index_topk={}", count);
    };
    add_topk(Suspect::kTopk, topk * 2);
    add_topk(Suspect::kTopk, topk * 4);
    if (subject.every_variant) {
      add_topk(Suspect::kFewerTopk, topk / 2);
      add_topk(Suspect::kFewerTopk, topk / 4);
    }
  }
  const bool fp8_rows = own.kv == KvPrecision::kFp8;
  Variant& rows = add(Suspect::kRowFormat, fp8_rows ? "KV rows bf16" : "KV rows fp8",
                      fmt::format("the {} format of KV rows", fp8_rows ? "FP8" : "BF16"));
  rows.knobs.kv = fp8_rows ? KvPrecision::kBf16 : KvPrecision::kFp8;
  rows.setting = fp8_rows ? "kv=bf16" : "kv=fp8";
  const bool bf16_inputs = own.expert_act == ActQuant::kBf16;
  Variant& inputs = add(Suspect::kExpertInput, bf16_inputs ? "expert inputs fp8" : "expert inputs bf16",
                        fmt::format("the {} format of expert inputs", to_words(own.expert_act)));
  inputs.knobs.expert_act = bf16_inputs ? ActQuant::kFp8 : ActQuant::kBf16;
  inputs.setting = bf16_inputs ? "expert_act=fp8" : "expert_act=bf16";
  if (subject.twin) add(Suspect::kExpertBytes, "twin checkpoint", "the expert bytes of this checkpoint");
  for (const auto& [name, tokens] : {std::pair{"long steps", kLongStepTokens}, {"odd steps", kOddStepTokens}})
    if (tokens != subject.chunk_tokens)
      add(Suspect::kSteps, name, "the cutting of the prompt into steps").chunk_tokens = tokens;
  return variants;
}

struct AttributionRun {
  std::vector<bool> right;
  std::array<AuditCount, kNumParts> audit{};
  std::vector<LayerFidelity> fidelity;
};

// Means over all queries of all cases.
class FidelityMeans {
 public:
  void add(const std::vector<LayerFidelity>& layers) {
    for (const LayerFidelity& f : layers) {
      LayerFidelity& sum =
          sums_.try_emplace(f.layer, LayerFidelity{f.layer, 0, 0, 0, 0, 0, 0, 1, -1, -1, 0}).first->second;
      const auto n = static_cast<double>(f.queries);
      sum.queries += f.queries, sum.limited += f.limited;
      sum.overlap += n * f.overlap, sum.margin += static_cast<double>(f.limited) * f.margin;
      sum.entry_mass += n * f.entry_mass, sum.total_mass += n * f.total_mass;
      sum.worst_overlap = std::min(sum.worst_overlap, f.worst_overlap);
      sum.fact_rank = std::max(sum.fact_rank, f.fact_rank);
      sum.fact_exact_rank = std::max(sum.fact_exact_rank, f.fact_exact_rank);
      sum.fact_selected += n * f.fact_selected;
    }
  }
  std::vector<LayerFidelity> means() const {
    std::vector<LayerFidelity> layers;
    for (auto [index, f] : sums_) {
      const auto n = static_cast<double>(std::max<std::int64_t>(1, f.queries));
      f.overlap /= n, f.entry_mass /= n, f.total_mass /= n, f.fact_selected /= n;
      f.margin /= static_cast<double>(std::max<std::int64_t>(1, f.limited));
      layers.push_back(f);
    }
    return layers;
  }

 private:
  std::map<std::int32_t, LayerFidelity> sums_;
};

Result<AttributionRun> run_cases(const AttributionSubject& subject, const std::vector<Case>& cases,
                                 const Variant& variant, bool audit, const std::function<void()>& step) {
  std::int64_t longest = 0;
  for (const Case& test : cases)
    longest = std::max(longest, static_cast<std::int64_t>(test.prompt.size()) + test.answer_tokens + 320);
  SessionOptions options;
  options.weights = variant.suspect == Suspect::kExpertBytes ? subject.twin : subject.weights;
  options.backend = subject.backend;
  if (variant.suspect == Suspect::kBackend) {
    PIVOT_TRY(options.backend, make_backend("cpu-reference", subject.num_threads));
  }
  if (variant.suspect == Suspect::kExactIndex)
    options.backend = std::make_shared<ExactIndex>(options.backend, subject.weights, subject.num_threads);
  std::shared_ptr<Probe> probe;
  if (audit) {
    ProbeOptions probe_options;
    probe_options.audit = true;
    probe_options.num_threads = subject.num_threads;
    probe = std::make_shared<Probe>(options.backend, subject.weights, probe_options);
    options.backend = probe;
  }
  options.knobs = variant.knobs;
  options.max_context = std::min(longest, subject.weights->config.max_position_embeddings);
  options.chunk_tokens =
      static_cast<std::int32_t>(std::min<std::int64_t>(variant.chunk_tokens, options.max_context));
  PIVOT_TRY(const auto session, Session::create(std::move(options)));
  const Path path = variant.suspect == Suspect::kRestore ? Path::kRestored : Path::kOneShot;
  const CaseRunner runner{session.get(), subject.tokenizer, subject.stop_tokens,
                          path,          probe.get(),       subject.cancel};
  AttributionRun run;
  FidelityMeans fidelity;
  for (const Case& test : cases) {
    PIVOT_TRY(const CaseResult result, runner.run(test));
    run.right.push_back(result.score.exact);
    fidelity.add(result.fidelity);
    step();
  }
  if (probe) run.audit = probe->audit();
  run.fidelity = fidelity.means();
  return run;
}

void add_counts(std::array<AuditCount, kNumParts>& sum, const std::array<AuditCount, kNumParts>& more) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (sum[i].different == 0 && more[i].different > 0)
      sum[i].layer = more[i].layer, sum[i].position = more[i].position;
    sum[i].checked += more[i].checked;
    sum[i].different += more[i].different;
    sum[i].worst = std::max(sum[i].worst, more[i].worst);
  }
}

// Whether running this alternative, too, could not change the verdict. The restored run is always made: it
// has faults of its own.
bool is_settled(const Attribution& so_far, const Variant& next) {
  if (next.suspect == Suspect::kRestore) return false;
  if (so_far.right == so_far.cases) return true;  // nothing to get back
  const bool part = std::any_of(so_far.audit.begin(), so_far.audit.end(), differs);
  return part && std::any_of(so_far.variants.begin(), so_far.variants.end(), [](const VariantResult& v) {
           return v.variant.suspect == Suspect::kBackend && gets_answers_back(v);
         });
}

}  // namespace

Result<Attribution> attribute(const AttributionSubject& subject, const std::vector<Case>& cases) {
  if (cases.empty())
    return fail(ErrorCode::kInvalidArgument,
                "there is no case to attribute; give lengths, depths and samples");
  Attribution attribution;
  attribution.cases = static_cast<std::int64_t>(cases.size());
  attribution.index_topk = own_topk(subject);
  const std::vector<Variant> variants = variants_of(subject);
  const auto total = static_cast<std::int64_t>((variants.size() + 1) * cases.size());
  std::int64_t done = 0;
  const auto step = [&] {
    ++done;
    if (subject.on_progress) subject.on_progress(done, total);
  };
  const Variant own{"as it is", "", Suspect::kSteps, "", subject.knobs, subject.chunk_tokens};
  PIVOT_TRY(const AttributionRun base, run_cases(subject, cases, own, /*audit=*/true, step));
  attribution.audit = base.audit;
  attribution.fidelity = base.fidelity;
  attribution.right = std::count(base.right.begin(), base.right.end(), true);
  for (const Variant& variant : variants) {
    if (!attribution.unreached.empty()) {
      attribution.unreached.push_back(variant.name);
      continue;
    }
    if (!subject.every_variant && is_settled(attribution, variant)) {
      ++attribution.skipped;
      continue;
    }
    VariantResult result;
    result.variant = variant;
    const bool restored = variant.suspect == Suspect::kRestore;
    auto run = run_cases(subject, cases, variant, /*audit=*/restored, step);
    if (!run && run.error().code == ErrorCode::kCancelled) {
      attribution.unreached.push_back(variant.name);
      continue;
    }
    if (!run) {
      result.unsupported = run.error().to_string();
      attribution.variants.push_back(std::move(result));
      continue;
    }
    for (std::size_t i = 0; i < cases.size(); ++i) result.pairs.add(base.right[i], run->right[i]);
    result.cases = attribution.cases;
    result.right = std::count(run->right.begin(), run->right.end(), true);
    result.p = result.p_holm = mcnemar_exact(result.pairs);
    result.gain = paired_interval(result.pairs);
    if (restored) {
      attribution.restored_right = result.right;
      add_counts(attribution.audit, run->audit);
    }
    attribution.variants.push_back(std::move(result));
  }
  correct_for_number(attribution.variants);
  attribution.verdict = judge(attribution);
  return attribution;
}

}  // namespace pivot::recall
