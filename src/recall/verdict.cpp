// From measured evidence to a verdict in words.
#include <algorithm>

#include "base/report/units.h"
#include "recall/attribution.h"

namespace pivot::recall {
namespace {

// Below this many points of 100 a difference is not worth a name even when it is significant.
constexpr double kSmallestLoss = 0.02;
constexpr double kSignificance = 0.05;
// Share of a part's comparisons that may differ before the part is said to differ: rounding at a tie is not a
// fault.
constexpr double kTolerance = 0.02;
// Discordant pairs that reach p < 0.05 two-sided, all on one side: with fewer wrong answers nothing can be
// laid at anything.
constexpr std::int64_t kFewestWrong = 6;

std::string p_text(double p) {
  return p < 1e-4 ? "p < 0.0001" : p < 0.1 ? fmt::format("p = {:.4f}", p) : fmt::format("p = {:.2f}", p);
}

std::string points_text(const VariantResult& v) {
  return fmt::format("{:+.1f} points [{:+.1f}, {:+.1f}]", 100 * v.pairs.difference(), 100 * v.gain.low,
                     100 * v.gain.high);
}

std::string right_text(const VariantResult& v) { return fmt::format("{} of {} right", v.right, v.cases); }
std::string are_right_text(const VariantResult& v) {
  return fmt::format("{} of {} are right", v.right, v.cases);
}

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

// A restored sequence is compared with the subject's own one-shot run.
bool loses_on_restore(const VariantResult& v) {
  return v.unsupported.empty() && v.variant.suspect == Suspect::kRestore && v.p_holm < kSignificance &&
         v.pairs.difference() <= -kSmallestLoss;
}

bool is_precision(Suspect suspect) {
  return suspect == Suspect::kExactIndex || suspect == Suspect::kKeyFormat;
}
bool is_number(Suspect suspect) { return suspect == Suspect::kSelection || suspect == Suspect::kTopk; }

class Judge {
 public:
  explicit Judge(const Attribution& evidence) : evidence_(evidence) {}

  Verdict decide() {
    std::optional<Part> part;
    // The earliest part in the order of computation that differs is the cause of those behind it.
    for (int i = 0; i < kNumParts && !part; ++i)
      if (differs(count_of(static_cast<Part>(i)))) part = static_cast<Part>(i);
    const VariantResult* oracle = best([](Suspect s) { return s == Suspect::kBackend; });
    const VariantResult* setting = best([](Suspect s) { return s != Suspect::kBackend; });
    if (part)
      accuse_part(*part, oracle, setting);
    else if (oracle != nullptr)
      accuse_backend(*oracle);
    else if (setting != nullptr)
      accuse_setting(*setting);
    else
      accuse_nobody();
    list_the_rest();
    return std::move(verdict_);
  }

 private:
  const AuditCount& count_of(Part part) const { return evidence_.audit[static_cast<std::size_t>(part)]; }

  // The alternative that gets most back of those whose suspect is wanted; the first of equals.
  template <class Wanted>
  const VariantResult* best(const Wanted& wanted) const {
    const VariantResult* found = nullptr;
    for (const VariantResult& v : evidence_.variants)
      if (gets_answers_back(v) && wanted(v.variant.suspect) &&
          (found == nullptr || v.pairs.difference() > found->pairs.difference()))
        found = &v;
    return found;
  }

  const VariantResult* ran(Suspect suspect) const {
    for (const VariantResult& v : evidence_.variants)
      if (v.variant.suspect == suspect && v.unsupported.empty()) return &v;
    return nullptr;
  }

  void count_loss(const VariantResult& v, double sign) {
    verdict_.points_lost = 100 * sign * v.pairs.difference();
    verdict_.points = sign > 0 ? Interval{100 * v.gain.low, 100 * v.gain.high}
                               : Interval{-100 * v.gain.high, -100 * v.gain.low};
    verdict_.p = v.p_holm;
  }
  // "25 of 100 points [11, 40] (p = 0.0234)".
  std::string loss_text() const {
    return fmt::format("{:.0f} of 100 points [{:.0f}, {:.0f}] ({})", verdict_.points_lost,
                       verdict_.points.low, verdict_.points.high, p_text(verdict_.p));
  }

  void accuse_part(Part part, const VariantResult* oracle, const VariantResult* setting) {
    const AuditCount& count = count_of(part);
    verdict_.part = part;
    verdict_.component = std::string(to_string(part));
    const std::string where = fmt::format(
        "{} of {} comparisons with the oracle differ, first in layer {} at {}, by up to {:.2g} of the size "
        "of what is compared: {}.",
        count.different, count.checked, count.layer, count.position, count.worst, symptom(part));
    const bool by_restore = part == Part::kCompressorRestore || part == Part::kWindowRestore;
    const VariantResult* restored = nullptr;
    for (const VariantResult& v : evidence_.variants)
      if (loses_on_restore(v)) restored = &v;
    // The oracle has the same settings and right parts: what it does not get back is not the part's doing.
    const bool oracle_ran = ran(Suspect::kBackend) != nullptr;
    const VariantResult* loss = by_restore ? restored : (oracle_ran ? oracle : setting);
    if (loss == nullptr) {
      verdict_.kind = VerdictKind::kHarmless;
      verdict_.sentence = fmt::format(
          "Fault in the part \"{}\"; no significant loss of answers on these {} cases can be laid at it. {}",
          verdict_.component, evidence_.cases, where);
      verdict_.advice = "Lengths and tasks that need this part would show what the fault costs.";
      if (setting != nullptr)
        verdict_.advice += fmt::format(
            " What is lost here is another matter: {} costs {:.0f} of 100 points ({}); mend the fault, then "
            "look at that.",
            setting->variant.cause, 100 * setting->pairs.difference(), p_text(setting->p_holm));
      return;
    }
    count_loss(*loss, by_restore ? -1 : 1);
    verdict_.kind = VerdictKind::kPart;
    const std::string compared =
        by_restore ? fmt::format("a sequence that never went back answers {} of {} cases, a restored one {}",
                                 evidence_.right, evidence_.cases, loss->right)
                   : fmt::format("with \"{}\" {} of {} cases are right, as it is {}", loss->variant.name,
                                 loss->right, evidence_.cases, evidence_.right);
    verdict_.sentence = fmt::format("Fault in the part \"{}\": it costs {}; {}. {}", verdict_.component,
                                    loss_text(), compared, where);
  }

  void accuse_backend(const VariantResult& oracle) {
    count_loss(oracle, 1);
    verdict_.kind = VerdictKind::kUnexplained;
    verdict_.component = "the back-end";
    verdict_.sentence = fmt::format(
        "The back-end costs {} against the oracle, which answers {} of {} cases instead of {}, and none of "
        "the parts that the audit compares differs.",
        loss_text(), oracle.right, evidence_.cases, evidence_.right);
    verdict_.advice =
        "The fault is in what the audit does not compare: attention's sums, the router, the hyper-"
        "connections or the head.";
  }

  void accuse_setting(const VariantResult& best_of_all) {
    verdict_.kind = VerdictKind::kSetting;
    const VariantResult* named = &best_of_all;
    std::string reason;
    if (is_number(named->variant.suspect)) {
      // More entries help whatever is wrong with an index. Precision is to blame where as many entries of a
      // finer index do, too; the number where only more of the same do.
      if (const VariantResult* finer = best(is_precision)) {
        named = finer;
        reason = fmt::format(" at the same index_topk; with \"{}\" {}", best_of_all.variant.name,
                             are_right_text(best_of_all));
      } else {
        const VariantResult* larger = best([](Suspect s) { return s == Suspect::kTopk; });
        if (larger != nullptr) named = larger;
        const VariantResult* exact = ran(Suspect::kExactIndex);
        const std::string by_exact =
            exact == nullptr ? std::string()
                             : fmt::format("an exact index over as many entries has {}", right_text(*exact));
        if (larger != nullptr)
          reason = by_exact.empty() ? std::string()
                                    : fmt::format(
                                          "; {}, so it is their number that costs answers and not "
                                          "what the index rounds",
                                          by_exact);
        else
          reason = fmt::format(
              "; {}{}more entries do not get them back: the model's indexer ranks what is needed further "
              "behind",
              by_exact, by_exact.empty() ? "" : " and ");
      }
    }
    count_loss(*named, 1);
    verdict_.component = named->variant.cause;
    verdict_.sentence = fmt::format(
        "{} costs {}: with \"{}\" {} instead of {}{}. Every part that was compared agrees with the oracle, "
        "so "
        "this is the setting's doing and no fault.",
        capitalized(verdict_.component), loss_text(), named->variant.name, are_right_text(*named),
        evidence_.right, reason);
    if (is_number(named->variant.suspect)) verdict_.sentence += kept_text();
    if (!named->variant.setting.empty())
      verdict_.advice =
          fmt::format("To run with it: --knob {}, here and in pivot serve.", named->variant.setting);
    named_ = named->variant.suspect;
  }

  // How much of the attention the selection keeps: why a number of entries is too small.
  std::string kept_text() const {
    std::string layers;
    for (const LayerFidelity& f : evidence_.fidelity)
      if (f.limited > 0)
        layers +=
            fmt::format("{}{:.0f} % in layer {}", layers.empty() ? "" : ", ", 100 * f.entry_mass, f.layer);
    return layers.empty() ? std::string()
                          : fmt::format(
                                " The selected entries keep this much of the attention that all "
                                "would get: {}.",
                                layers);
  }

  void accuse_nobody() {
    const std::int64_t wrong = evidence_.cases - evidence_.right;
    if (wrong == 0) {
      verdict_.sentence = fmt::format(
          "No loss: all {} cases are right, and every part that was compared agrees with the oracle.",
          evidence_.cases);
    } else if (wrong < kFewestWrong) {
      verdict_.sentence = fmt::format(
          "No loss that could be laid at anything: {} of {} cases are wrong, too few to tell a cause from "
          "chance; every part that was compared agrees with the oracle.",
          wrong, evidence_.cases);
      verdict_.advice = "More --samples would tell.";
    } else {
      verdict_.kind = VerdictKind::kModel;
      verdict_.component = "the model or the task";
      verdict_.sentence = fmt::format(
          "{} of {} cases are wrong, and no alternative, the oracle included, gets significantly more right: "
          "the loss is the model's or the task's, not this engine's or a setting's.",
          wrong, evidence_.cases);
    }
  }

  // Whether an alternative speaks of what the verdict names, so that it cannot be ruled out beside it.
  bool is_of_verdict(const VariantResult& v) const {
    if (verdict_.kind != VerdictKind::kSetting) return false;
    const Suspect s = v.variant.suspect;
    if (is_precision(named_)) return is_precision(s) || is_number(s);
    if (is_number(named_)) return is_number(s) || s == Suspect::kFewerTopk || s == Suspect::kExactIndex;
    return s == named_;
  }

  void list_the_rest() {
    for (const VariantResult& v : evidence_.variants) {
      if (!v.unsupported.empty()) continue;
      const std::string text = fmt::format("{}: {}, {}", v.variant.name, right_text(v), points_text(v));
      if (is_of_verdict(v) || gets_answers_back(v) || loses_on_restore(v))
        verdict_.evidence.push_back(
            fmt::format("{}, {}", text, p_text(gets_answers_back(v) ? v.p_holm : v.p)));
      else if (v.variant.suspect == Suspect::kFewerTopk)
        continue;  // on trial for nothing
      else if (v.p < kSignificance && v.pairs.difference() >= kSmallestLoss)
        verdict_.open.push_back(fmt::format("{} ({}; {} alone, {} among so many)", v.variant.cause, text,
                                            p_text(v.p), p_text(v.p_holm)));
      else
        verdict_.ruled_out.push_back(fmt::format("{} ({}, {})", v.variant.cause, text, p_text(v.p)));
    }
    std::string agree, unseen;
    std::int64_t compared = 0;
    for (int i = 0; i < kNumParts; ++i) {
      const auto part = static_cast<Part>(i);
      const AuditCount& count = count_of(part);
      const auto append = [&](std::string& list) {
        list += fmt::format("{}{}", list.empty() ? "" : ", ", to_string(part));
      };
      const std::optional<Part> whole = covered_by(part);
      if (count.checked == 0 && whole && count_of(*whole).checked > 0) {
        if (!differs(count_of(*whole))) append(agree);
      } else if (count.checked == 0) {
        append(unseen);
      } else if (count.different == 0) {
        append(agree);
        compared += count.checked;
      } else if (!differs(count)) {
        verdict_.ruled_out.push_back(fmt::format(
            "{}: {} of {} comparisons with the oracle differ, no more than ties in rounding explain",
            to_string(part), count.different, count.checked));
      }
    }
    if (!agree.empty())
      verdict_.ruled_out.push_back(fmt::format("parts that agree with the oracle in all {} comparisons: {}",
                                               report::format_count(compared), agree));
    if (!unseen.empty()) verdict_.open.push_back(fmt::format("parts that no case reached: {}", unseen));
  }

  const Attribution& evidence_;
  Verdict verdict_;
  Suspect named_ = Suspect::kBackend;  // of kSetting
};

}  // namespace

void correct_for_number(std::vector<VariantResult>& variants) {
  std::vector<VariantResult*> order;
  for (VariantResult& v : variants)
    if (v.unsupported.empty() && v.variant.suspect != Suspect::kFewerTopk) order.push_back(&v);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->p < b->p; });
  double least = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    least = std::max(least, std::min(1.0, order[i]->p * static_cast<double>(order.size() - i)));
    order[i]->p_holm = least;
  }
}

bool gets_answers_back(const VariantResult& v) {
  return v.unsupported.empty() && v.variant.suspect != Suspect::kRestore &&
         v.variant.suspect != Suspect::kFewerTopk && v.p_holm < kSignificance &&
         v.pairs.difference() >= kSmallestLoss;
}

bool differs(const AuditCount& count) {
  return count.different > 0 &&
         static_cast<double>(count.different) > kTolerance * static_cast<double>(count.checked);
}

Verdict judge(const Attribution& evidence) { return Judge(evidence).decide(); }

}  // namespace pivot::recall
