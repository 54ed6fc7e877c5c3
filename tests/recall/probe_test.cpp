// What the probe measures on the embedded model.
#include "recall/probe.h"

#include <gtest/gtest.h>

#include "engine/devices.h"
#include "recall/embedded.h"
#include "recall/exact_index.h"

namespace pivot::recall {
namespace {

struct Measured {
  CaseResult result;
  std::vector<QueryFidelity> queries;
  std::array<AuditCount, kNumParts> audit{};
};

Measured measure(const std::vector<std::string>& assignments, bool audit, std::int32_t chunk_tokens = 0,
                 bool exact_index = false) {
  const std::vector<Case> cases = embedded_cases({{Task::kSingle}, {600}, {0.4}, {1}, 4, 1, 11});
  const AttributionSubject subject = embedded_subject();
  ProbeOptions options;
  options.audit = audit;
  options.sample_every = 50;
  options.num_threads = 2;
  const std::shared_ptr<Backend> backend =
      exact_index ? std::make_shared<ExactIndex>(subject.backend, subject.weights, 2) : subject.backend;
  const auto probe = std::make_shared<Probe>(backend, subject.weights, options);
  SessionOptions session_options;
  session_options.weights = subject.weights;
  session_options.backend = probe;
  EXPECT_TRUE(set_knobs(session_options.knobs, assignments));
  session_options.max_context = 1024;
  session_options.chunk_tokens = chunk_tokens;
  const auto session = Session::create(std::move(session_options)).value();
  const CaseRunner runner{session.get(),  subject.tokenizer, subject.stop_tokens,
                          Path::kOneShot, probe.get(),       nullptr};
  Measured measured;
  measured.result = runner.run(cases[0]).value();
  measured.queries = probe->fidelity();
  measured.audit = probe->audit();
  return measured;
}

TEST(Probe, TheRightEntryRanksFirstAndIsSelected) {
  const Measured measured = measure({}, false);
  EXPECT_TRUE(measured.result.score.exact) << measured.result.answer;
  ASSERT_EQ(measured.result.fidelity.size(), 2u);  // the two ratio-4 layers
  EXPECT_GT(measured.result.fidelity[0].limited, 0);
  bool first = false;
  for (const QueryFidelity& query : measured.queries) {
    EXPECT_GE(query.overlap, 0.5);
    EXPECT_LE(query.overlap, 1);
    EXPECT_GT(query.entry_mass, 0);
    EXPECT_LE(query.entry_mass, 1 + 1e-9);
    EXPECT_GE(query.total_mass, query.entry_mass - 1e-9);  // what is lost is a smaller share of more
    EXPECT_GE(query.margin, 0);
    first |= query.layer == 1 && query.fact_exact_rank == 0;
  }
  EXPECT_TRUE(first);
}

TEST(Probe, NothingIsLostWhereNothingIsLeftOut) {
  for (const QueryFidelity& query : measure({"index_topk=all"}, false).queries) {
    EXPECT_EQ(query.selected, query.visible);
    EXPECT_EQ(query.overlap, 1);
    EXPECT_EQ(query.entry_mass, 1);
    EXPECT_EQ(query.margin, 0);
  }
}

TEST(Probe, FewerEntriesKeepLessMassAndFinerKeysAgreeMore) {
  const auto mean = [](const Measured& m, double QueryFidelity::*field) {
    double sum = 0;
    for (const QueryFidelity& q : m.queries) sum += q.*field;
    return sum / static_cast<double>(m.queries.size());
  };
  const Measured fp4 = measure({}, false), bf16 = measure({"index_keys=bf16"}, false),
                 few = measure({"index_topk=4"}, false);
  EXPECT_GT(mean(bf16, &QueryFidelity::overlap), mean(fp4, &QueryFidelity::overlap));
  EXPECT_GT(mean(bf16, &QueryFidelity::overlap), 0.95);
  EXPECT_LT(mean(few, &QueryFidelity::entry_mass), mean(fp4, &QueryFidelity::entry_mass));
}

TEST(Probe, AuditOfARightEngineFindsNothing) {
  for (const std::vector<std::string>& knobs :
       {std::vector<std::string>{}, {"index_keys=fp8"}, {"index_keys=bf16", "kv=bf16"}}) {
    const Measured measured = measure(knobs, true, 63);
    for (int i = 0; i < kNumParts; ++i) {
      const Part part = static_cast<Part>(i);
      const AuditCount& count = measured.audit[static_cast<std::size_t>(i)];
      EXPECT_EQ(count.different, 0) << to_string(part) << " worst " << count.worst;
    }
    EXPECT_GT(measured.audit[static_cast<std::size_t>(Part::kCompressorCarry)].checked, 0);
    EXPECT_GT(measured.audit[static_cast<std::size_t>(Part::kWindowCarry)].checked, 0);
    EXPECT_GT(measured.audit[static_cast<std::size_t>(Part::kTopkCandidates)].checked, 0);
  }
}

TEST(ExactIndex, SelectsWhatAnIndexWithoutRoundingWould) {
  // Few entries and odd steps, so that every query is a choice and state goes from step to step.
  const std::vector<std::string> few = {"index_topk=8"};
  const Measured coarse = measure(few, false, 63), exact = measure(few, false, 63, /*exact_index=*/true);
  ASSERT_FALSE(exact.queries.empty());
  double least = 1;
  for (const QueryFidelity& query : coarse.queries) least = std::min(least, query.overlap);
  EXPECT_LT(least, 1);
  for (const QueryFidelity& query : exact.queries) {
    EXPECT_EQ(query.overlap, 1) << query.layer << " at " << query.position;
    EXPECT_EQ(query.selected, std::min<std::int64_t>(8, query.visible));
  }
  EXPECT_TRUE(exact.result.score.exact) << exact.result.answer;
}

TEST(Probe, ChangesNothing) {
  const Measured plain = measure({}, false), audited = measure({}, true);
  EXPECT_EQ(plain.result.answer, audited.result.answer);
}

}  // namespace
}  // namespace pivot::recall
