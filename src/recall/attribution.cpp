#include "recall/attribution.h"

#include <algorithm>
#include <cmath>

#include "engine/devices.h"

namespace pivot::recall {
namespace {

// Below this many points of 100 a difference is not worth a name even when it is significant.
constexpr double kSmallestLoss = 0.02;
constexpr double kSignificance = 0.05;
// Share of a part's comparisons that may differ before the part is said to differ: rounding at a tie is not a
// fault.
constexpr double kTolerance = 0.02;
constexpr std::int64_t kOddChunkTokens = 63;

std::vector<Variant> variants_of(const AttributionSubject& subject) {
  std::vector<Variant> variants;
  const auto add = [&](std::string name, std::string rules, const auto& change) {
    Variant variant{std::move(name),      std::move(rules), subject.knobs,
                    subject.chunk_tokens, Path::kOneShot,   false};
    change(variant);
    // An alternative that is the subject itself would say nothing.
    if (variant.knobs == subject.knobs && variant.chunk_tokens == subject.chunk_tokens &&
        variant.path == Path::kOneShot && !variant.oracle)
      return;
    variants.push_back(std::move(variant));
  };
  add("after a restore", "state saved and restored", [](Variant& v) { v.path = Path::kRestored; });
  add("oracle back-end", "everything that the back-end computes", [](Variant& v) { v.oracle = true; });
  add("all entries attended", "the indexer and its selection",
      [](Variant& v) { v.knobs.index_topk = kTopkAll; });
  add("index keys bf16", "the precision of index keys",
      [](Variant& v) { v.knobs.index_keys = IndexPrecision::kBf16; });
  add("index keys fp8", "the FP4 format of index keys",
      [](Variant& v) { v.knobs.index_keys = IndexPrecision::kFp8; });
  add("index keys fp4", "an index format that training did not see",
      [](Variant& v) { v.knobs.index_keys = IndexPrecision::kFp4; });
  const std::int32_t own = subject.knobs.index_topk == kTopkFromCheckpoint
                               ? static_cast<std::int32_t>(subject.weights->config.index_topk)
                               : subject.knobs.index_topk;
  if (own > 0) {
    add(fmt::format("index_topk {}", own * 2), "a selection that is too small",
        [own](Variant& v) { v.knobs.index_topk = own * 2; });
    add(fmt::format("index_topk {}", own * 4), "a selection that is too small",
        [own](Variant& v) { v.knobs.index_topk = own * 4; });
  }
  add("KV rows bf16", "the FP8 format of KV rows", [](Variant& v) { v.knobs.kv = KvPrecision::kBf16; });
  add("expert inputs bf16", "the activation format of experts",
      [](Variant& v) { v.knobs.expert_act = ActQuant::kBf16; });
  add("long steps", "state carried between steps", [](Variant& v) { v.chunk_tokens = 4096; });
  add("odd steps", "state carried between steps", [](Variant& v) { v.chunk_tokens = kOddChunkTokens; });
  return variants;
}

struct Run {
  std::vector<bool> right;
  std::array<AuditCount, kNumParts> audit{};
};

Result<Run> run_cases(const AttributionSubject& subject, const std::vector<Case>& cases,
                      const Variant& variant, bool audit, const std::function<void()>& step) {
  std::int64_t longest = 0;
  for (const Case& test : cases)
    longest = std::max(longest, static_cast<std::int64_t>(test.prompt.size()) + test.answer_tokens + 320);
  SessionOptions options;
  options.weights = subject.weights;
  options.backend = subject.backend;
  if (variant.oracle) {
    PIVOT_TRY(options.backend, make_backend("cpu-reference", subject.num_threads));
  }
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
  const CaseRunner runner{session.get(), subject.tokenizer, subject.stop_tokens,
                          variant.path,  probe.get(),       subject.cancel};
  Run run;
  for (const Case& test : cases) {
    PIVOT_TRY(const CaseResult result, runner.run(test));
    run.right.push_back(result.score.exact);
    step();
  }
  if (probe) run.audit = probe->audit();
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

// Holm's step-down correction.
void correct(std::vector<VariantResult>& variants) {
  std::vector<VariantResult*> order;
  for (VariantResult& v : variants)
    if (v.unsupported.empty()) order.push_back(&v);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->p < b->p; });
  double least = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    least = std::max(least, std::min(1.0, order[i]->p * static_cast<double>(order.size() - i)));
    order[i]->p_holm = least;
  }
}

bool gains(const VariantResult& v) {
  return v.unsupported.empty() && v.variant.path == Path::kOneShot && v.p_holm < kSignificance &&
         v.pairs.difference() >= kSmallestLoss;
}

bool differs(const AuditCount& count) {
  return count.different > 0 &&
         static_cast<double>(count.different) > kTolerance * static_cast<double>(count.checked);
}

// A restored sequence is compared with the subject's own one-shot run.
const VariantResult* restored_loss(const Attribution& evidence) {
  for (const VariantResult& v : evidence.variants)
    if (v.unsupported.empty() && v.variant.path == Path::kRestored && v.p_holm < kSignificance &&
        v.pairs.difference() <= -kSmallestLoss)
      return &v;
  return nullptr;
}

// Whether running this alternative, too, could not change the verdict. The restored run is always made: it
// has faults of its own.
bool is_settled(const Attribution& so_far, const Variant& next) {
  if (next.path == Path::kRestored) return false;
  if (so_far.right == so_far.cases) return true;  // nothing to get back
  const bool part = std::any_of(so_far.audit.begin(), so_far.audit.end(), differs);
  return part && std::any_of(so_far.variants.begin(), so_far.variants.end(),
                             [](const VariantResult& v) { return v.variant.oracle && gains(v); });
}

std::string confidence(double p) { return p < 1e-4 ? "p < 0.0001" : fmt::format("p = {:.4f}", p); }

std::string rule_out(const VariantResult& v) {
  return fmt::format("{} ({}): {:+.1f} points [{:+.1f}, {:+.1f}], {}", v.variant.rules, v.variant.name,
                     100 * v.pairs.difference(), 100 * v.gain.low, 100 * v.gain.high, confidence(v.p));
}

}  // namespace

Result<Attribution> attribute(const AttributionSubject& subject, const std::vector<Case>& cases) {
  if (cases.empty())
    return fail(ErrorCode::kInvalidArgument,
                "there is no case to attribute; give lengths, depths and samples");
  Attribution attribution;
  attribution.cases = static_cast<std::int64_t>(cases.size());
  const std::vector<Variant> variants = variants_of(subject);
  const auto total = static_cast<std::int64_t>((variants.size() + 1) * cases.size());
  std::int64_t done = 0;
  const auto step = [&] {
    ++done;
    if (subject.on_progress) subject.on_progress(done, total);
  };
  const Variant own{"as it is", "", subject.knobs, subject.chunk_tokens, Path::kOneShot, false};
  PIVOT_TRY(const Run base, run_cases(subject, cases, own, /*audit=*/true, step));
  attribution.audit = base.audit;
  attribution.right = std::count(base.right.begin(), base.right.end(), true);
  for (const Variant& variant : variants) {
    if (!subject.every_variant && is_settled(attribution, variant)) {
      ++attribution.skipped;
      continue;
    }
    VariantResult result;
    result.variant = variant;
    const bool restored = variant.path == Path::kRestored;
    auto run = run_cases(subject, cases, variant, /*audit=*/restored, step);
    if (!run && run.error().code == ErrorCode::kCancelled) return fail(std::move(run).error());
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
  correct(attribution.variants);
  attribution.verdict = judge(attribution);
  return attribution;
}

Verdict judge(const Attribution& evidence) {
  Verdict verdict;
  const VariantResult* oracle = nullptr;
  const VariantResult* best = nullptr;
  for (const VariantResult& v : evidence.variants) {
    if (v.variant.oracle && v.unsupported.empty()) oracle = &v;
    if (gains(v) && (best == nullptr || v.pairs.difference() > best->pairs.difference())) best = &v;
  }
  const VariantResult* restored = restored_loss(evidence);
  const bool oracle_gains = oracle != nullptr && gains(*oracle);

  // The earliest part in the order of computation that differs is the cause of those behind it.
  std::optional<Part> part;
  for (int i = 0; i < kNumParts && !part; ++i)
    if (differs(evidence.audit[static_cast<std::size_t>(i)])) part = static_cast<Part>(i);
  const auto loses = [&](const VariantResult& v, double sign) {
    verdict.points_lost = 100 * sign * v.pairs.difference();
    verdict.points = sign > 0 ? Interval{100 * v.gain.low, 100 * v.gain.high}
                              : Interval{-100 * v.gain.high, -100 * v.gain.low};
    verdict.p = v.p_holm;
  };
  for (const VariantResult& v : evidence.variants)
    if (v.unsupported.empty() && !gains(v) && &v != restored) verdict.ruled_out.push_back(rule_out(v));
  for (int i = 0; i < kNumParts; ++i) {
    const AuditCount& count = evidence.audit[static_cast<std::size_t>(i)];
    if (count.checked > 0 && !differs(count))
      verdict.ruled_out.push_back(fmt::format("{}: agrees with the oracle in {} of {} comparisons",
                                              to_string(static_cast<Part>(i)),
                                              count.checked - count.different, count.checked));
  }

  const bool by_restore = part && (*part == Part::kCompressorRestore || *part == Part::kWindowRestore);
  const VariantResult* loss = by_restore ? restored : (oracle_gains ? oracle : best);
  if (part) {
    const AuditCount& count = evidence.audit[static_cast<std::size_t>(*part)];
    verdict.part = *part;
    verdict.component = std::string(to_string(*part));
    const std::string where = fmt::format(
        "it differs from the oracle in {} of {} comparisons, first in layer {}, relative difference up to "
        "{:.2g}",
        count.different, count.checked, count.layer, count.worst);
    if (loss != nullptr) {
      loses(*loss, by_restore ? -1 : 1);
      verdict.kind = VerdictKind::kPart;
      verdict.sentence = fmt::format(
          "{}: costs {:.0f} of 100 points [{:.0f}, {:.0f}] ({}; {} answers {} of {} cases); {}.",
          verdict.component, verdict.points_lost, verdict.points.low, verdict.points.high,
          confidence(verdict.p), by_restore ? "a sequence that never went back" : loss->variant.name,
          by_restore ? evidence.right : loss->right, evidence.cases, where);
    } else {
      verdict.kind = VerdictKind::kHarmless;
      verdict.sentence = fmt::format(
          "{}: faulty, but no loss of answers on these {} cases can be laid at it: {}. Try lengths and "
          "tasks that need it.",
          verdict.component, evidence.cases, where);
    }
  } else if (oracle_gains) {
    loses(*oracle, 1);
    verdict.kind = VerdictKind::kUnexplained;
    verdict.component = "the back-end";
    verdict.sentence = fmt::format(
        "the back-end loses {:.0f} of 100 points [{:.0f}, {:.0f}] against the oracle ({}), and none of the "
        "parts that the audit compares differs: look at what it does not compare (attention, router, head).",
        verdict.points_lost, verdict.points.low, verdict.points.high, confidence(verdict.p));
  } else if (best != nullptr) {
    loses(*best, 1);
    verdict.kind = VerdictKind::kSetting;
    verdict.component = best->variant.rules;
    verdict.sentence = fmt::format(
        "{} costs {:.0f} of 100 points [{:.0f}, {:.0f}] ({}): with \"{}\" {} of {} cases are right instead "
        "of {}. Every part agrees with the oracle, so this is the setting's doing and no fault.",
        verdict.component, verdict.points_lost, verdict.points.low, verdict.points.high,
        confidence(verdict.p), best->variant.name, best->right, evidence.cases, evidence.right);
  } else if (evidence.right == evidence.cases) {
    verdict.sentence = fmt::format(
        "no loss attributable: all {} cases are right, no alternative differs significantly, and every part "
        "agrees with the oracle.",
        evidence.cases);
  } else {
    const auto wrong = evidence.cases - evidence.right;
    const bool few = wrong < 6;  // fewer discordant pairs than 6 cannot reach p < 0.05 two-sided
    verdict.kind = few ? VerdictKind::kClean : VerdictKind::kModel;
    verdict.sentence = few ? fmt::format(
                                 "no loss attributable: {} of {} cases are wrong, too few to lay at "
                                 "anything; every part agrees with the oracle.",
                                 wrong, evidence.cases)
                           : fmt::format(
                                 "{} of {} cases are wrong whatever is changed, on the oracle too: the loss "
                                 "is the model's (or the task's), not this engine's or a setting's.",
                                 wrong, evidence.cases);
  }
  return verdict;
}

}  // namespace pivot::recall
