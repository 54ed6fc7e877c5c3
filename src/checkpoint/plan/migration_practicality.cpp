// Layers 3 and 4: sizes, times, steps and the way back; and what is still open.
#include <fmt/format.h>

#include <algorithm>

#include "base/report/units.h"
#include "checkpoint/plan/migration.h"

namespace pivot {

namespace {

using report::format_bytes;
using report::format_count;
using report::format_seconds;
using report::format_tokens;

// Context, graph capture and first requests after the weights are in place.
constexpr double kWarmUpSeconds = 60;

void add_fit(const MigrationInput& input, Migration& migration) {
  if (!input.b.plan) return;
  const Plan& plan = *input.b.plan;
  const Source source = {Basis::kComputed, "memory plan of B; " + plan.bytes_basis};
  if (!plan.recommendation) {
    migration.practicality.push_back(
        {fmt::format("B does not fit {}: no layout holds its weights and one sequence.", migration.machine),
         source});
    return;
  }
  const Evaluation& best = plan.evaluations[plan.recommendation->best];
  migration.practicality.push_back(
      {fmt::format("Memory: B fits {} as {}: {} of weights per GPU, {} of {} in use with {} requests of {} "
                   "tokens, room for {} tokens of KV in all.",
                   migration.machine, best.arrangement.name(),
                   format_bytes(static_cast<double>(best.memory.weights())),
                   format_bytes(static_cast<double>(best.memory.total())),
                   format_bytes(static_cast<double>(best.memory.available)),
                   report::format_number(best.admitted), format_count(plan.workload.context_tokens),
                   format_tokens(static_cast<double>(best.capacity_tokens))),
       source});
}

}  // namespace

void add_practicality(const MigrationInput& input, Migration& migration) {
  const auto size_b = static_cast<double>(input.b.data_bytes);
  const auto size_a = static_cast<double>(input.a.data_bytes);
  const Source size_source = input.b.headers
                                 ? Source{Basis::kMeasured, "B's headers"}
                                 : Source{Basis::kComputed, "B's config and the formats it names"};
  migration.practicality.push_back(
      {fmt::format("Size: B is {} bytes ({}) in {} tensors; A is {} ({:+.2f} GiB).",
                   format_count(static_cast<std::int64_t>(input.b.data_bytes)), format_bytes(size_b),
                   format_count(static_cast<std::int64_t>(input.b.tensors.size())), format_bytes(size_a),
                   (size_b - size_a) / (1024.0 * 1024 * 1024)),
       size_source});
  if (input.b.data) {
    migration.practicality.push_back(
        {"Download: none, B is on this machine's disk.", {Basis::kMeasured, "B's folder"}});
  } else {
    migration.practicality.push_back(
        {fmt::format("Download: {} at {}/s.", format_seconds(size_b / input.download_bytes_per_second),
                     format_bytes(input.download_bytes_per_second)),
         {input.download_rate_given ? Basis::kComputed : Basis::kAssumption,
          input.download_rate_given ? "size over the rate given"
                                    : "size over 1 Gbit/s; give yours with --bandwidth"}});
    // Room for B beside A, so that going back needs no second download. Headers say nothing of the
    // deployment's disk.
    const auto& free = input.a.inspection.free_disk_bytes;
    if (!input.a.data || !free) {
      migration.practicality.push_back(
          {fmt::format("Disk: B beside A needs {} free; A is known by its headers or config only, so what is "
                       "free where it lies is an open fact.",
                       format_bytes(size_b * 1.01)),
           {Basis::kComputed, "B's size and one percent"}});
    } else {
      const double short_of = size_b * 1.01 - static_cast<double>(*free);
      migration.practicality.push_back(
          {fmt::format("Disk: {} are free where A lies; B beside A needs {}{}.",
                       format_bytes(static_cast<double>(*free)), format_bytes(size_b * 1.01),
                       short_of <= 0
                           ? ""
                           : fmt::format(", {} more than there is: free them or put B on another disk",
                                         format_bytes(short_of))),
           {Basis::kMeasured, "statvfs of A's disk"}});
    }
  }
  if (is_nvfp4(input.a.formats.experts) && input.b.formats.experts == ExpertFormat::kMxfp4 &&
      same_lineage(input))
    migration.practicality.push_back(
        {"Shortcut: if A is a lossless cast, `pivot convert A B --experts native` rebuilds the native "
         "weights bit for bit on this machine, without a download.",
         {Basis::kPublicFact, "specification 4.3; `pivot inspect A --values full` tells whether it holds"}});
  add_fit(input, migration);

  const double load = size_b / input.load_bytes_per_second;
  const bool replicas =
      input.b.plan && input.b.plan->recommendation &&
      input.b.plan->evaluations[input.b.plan->recommendation->best].arrangement.decode.replicas > 1;
  migration.practicality.push_back(
      {fmt::format("Down time: loading takes {} at {}/s plus about {} to warm up{}.", format_seconds(load),
                   format_bytes(input.load_bytes_per_second), format_seconds(kWarmUpSeconds),
                   replicas ? "; with the recommended replicas one is exchanged at a time, so there is less "
                              "capacity but no outage"
                            : "; with one instance that is the outage"),
       {Basis::kAssumption, "disk rate and warm-up time; measure yours with the first test start"}});

  const std::string b = side_name(input.b);
  auto& steps = migration.steps;
  steps.push_back(
      "Record what runs today: `pivot inspect A --json`, the engine's version and flags, and a recall and "
      "acceptance run of A.");
  if (!input.b.data) steps.push_back(fmt::format("Fetch {} into a folder of its own (never over A).", b));
  steps.push_back(
      "Check it: `pivot inspect B --values full`; the verdict, the tensor audit and the fingerprint must be "
      "as planned.");
  if (input.a.data) steps.push_back("Compare: `pivot diff A B` and read which modules differ.");
  steps.push_back(
      "Start B on spare GPUs, or on one replica taken out of the load balancer; keep the flags of A except "
      "those that name the expert format.");
  steps.push_back(
      "Run the same recall, acceptance and speed tests on B; compare like with like (same knobs, prefix "
      "cache off).");
  steps.push_back("Flush prefix caches and saved sessions, or make sure that they are keyed by fingerprint.");
  steps.push_back(
      "Exchange the replicas one by one; watch error rate, tokens per second, acceptance and the recall "
      "probe for a day.");
  migration.rollback = {
      {"Keep A's folder and unit files until B has run for a release cycle: going back is a change of the "
       "model path and a restart.",
       {Basis::kComputed, "nothing above writes to A's folder"}},
      {fmt::format("A restart with A takes {} to load; no conversion or download is needed.",
                   format_seconds(size_a / input.load_bytes_per_second)),
       {Basis::kAssumption,
        fmt::format("{}/s from disk; --load-rate takes yours", format_bytes(input.load_bytes_per_second))}},
      {"State written by B (prefix caches, saved sessions) is not usable by A: flush again.",
       {Basis::kComputed, "state is a function of weights"}}};
}

void add_open_facts(const MigrationInput& input, Migration& migration) {
  auto& open = migration.open_facts;
  const Inspection& a = input.a.inspection;
  const bool nvfp4 = is_nvfp4(input.a.formats.experts);
  if (!input.a.data) {
    open.push_back(
        {"Which files are really on the deployment's disk (variant, revision, complete or not), and how much "
         "is free there?",
         "everything above was said of headers or a config, not of your copy", "pivot inspect /path/to/A"});
  }
  if (nvfp4 && !(a.nvfp4 && a.nvfp4->checked == a.nvfp4->matrices))
    open.push_back({"Is A the lossless cast of the native weights?",
                    "if it is, moving changes activations only, and `pivot convert` can rebuild the native "
                    "checkpoint here",
                    "pivot inspect /path/to/A --values full"});
  if (nvfp4 && input.a.formats.head != HeadKind::kNone && !input.a.data)
    open.push_back({"Are the draft head's experts NVFP4 or MXFP4 in your copy?",
                    "exporters differ; a loader that assumes the wrong one loses speculative decoding",
                    "pivot inspect /path/to/A"});
  if (!input.diff && migration.same_architecture)
    open.push_back({"Which modules differ in value?", "replaces the public facts above by measurements",
                    "pivot diff /path/to/A /path/to/B --json > diff.json && pivot plan /path/to/A --to "
                    "/path/to/B --diff diff.json"});
  if (!a.hyper_connections)
    open.push_back({"Are the mHC matrices BF16-representable?",
                    "decides whether a BF16 mHC GEMM is exact or a quality loss",
                    "pivot inspect /path/to/A"});
  if (input.b.formats.head == HeadKind::kDspark)
    open.push_back({"Is B the 0731 release or the June DSpark release? Their headers are the same.",
                    "they are different models under one layout",
                    "pivot inspect /path/to/B   (compare the fingerprint with a known copy)"});
  open.push_back({"How well does today's engine recall, by length and depth?",
                  "without a baseline no move can be judged", "pivot recall /path/to/A"});
  open.push_back(
      {"Does B recall better with all else equal?",
       "the only direct answer to the complaint; the same run attributes a loss to selection or to copying",
       "pivot recall /path/to/B"});
  open.push_back({"What share of the roofline does B reach on your cards?",
                  "turns the computed ceiling into tokens per second", "pivot bench decode /path/to/B"});
  open.push_back({"Does B pass the acceptance set?", "the gate before the first replica is exchanged",
                  "pivot accept /path/to/B"});
}

}  // namespace pivot
