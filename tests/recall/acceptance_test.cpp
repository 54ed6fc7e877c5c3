// The acceptance kit on the embedded model: right, and disturbed.
#include "recall/acceptance.h"

#include <gtest/gtest.h>

#include <set>

#include "recall/acceptance_tensors.h"
#include "recall/embedded.h"

namespace pivot::recall {
namespace {

std::vector<Check> checks_of(const std::shared_ptr<Backend>& backend) {
  const AttributionSubject embedded = embedded_subject();
  AcceptanceSubject subject;
  subject.name = "embedded";
  subject.weights = embedded.weights;
  subject.backend = backend ? backend : embedded.backend;
  subject.tokenizer = embedded.tokenizer;
  subject.stop_tokens = embedded.stop_tokens;
  subject.num_threads = 2;
  subject.audit = "the headers were read";
  subject.cases = embedded_cases({{Task::kSingle}, {480}, {0.5}, {0, 3}, 4, 1, 1});
  const std::vector<TokenId>& prompt = subject.cases[0].prompt;
  subject.text.assign(prompt.begin(), prompt.begin() + 320);
  return accept(subject).value();
}

const Check& check_of(const std::vector<Check>& checks, const std::string& name) {
  const auto found =
      std::find_if(checks.begin(), checks.end(), [&](const Check& check) { return check.name == name; });
  EXPECT_NE(found, checks.end()) << name;
  return *found;
}

TEST(Acceptance, AcceptsTheEmbeddedModel) {
  const std::vector<Check> checks = checks_of(nullptr);
  EXPECT_TRUE(accepted(checks));
  // Every number of specification section 10 is there, run or with a reason.
  std::string numbers;
  for (const Check& check : checks) {
    numbers += fmt::format(",{}", check.number);
    EXPECT_NE(check.detail, "") << check.name;
    EXPECT_NE(check.outcome, Outcome::kFail) << check.name << ": " << check.detail;
  }
  numbers += ",";
  numbers.erase(std::remove(numbers.begin(), numbers.end(), ' '), numbers.end());
  for (int n = 1; n <= 15; ++n)
    EXPECT_NE(numbers.find("," + std::to_string(n) + ","), std::string::npos) << n << " in " << numbers;
  EXPECT_EQ(check_of(checks, "restored equals one-shot").outcome, Outcome::kPass);
  EXPECT_EQ(check_of(checks, "router on real tables").outcome, Outcome::kPass);
}

TEST(Acceptance, RefusesAFaultyBackendAndSaysWhere) {
  const AttributionSubject subject = embedded_subject();
  const std::vector<Check> checks = checks_of(
      make_faulty_backend(subject.backend, subject.weights, subject.knobs, Fault::kUnrotatedKeys).value());
  EXPECT_FALSE(accepted(checks));
  const Check& audit = check_of(checks, "every part against the oracle");
  EXPECT_EQ(audit.outcome, Outcome::kFail);
  EXPECT_NE(audit.detail.find(to_string(Part::kKeyRotation)), std::string::npos) << audit.detail;
}

TEST(Acceptance, RefusesAStateThatARestoreLoses) {
  const AttributionSubject subject = embedded_subject();
  const std::vector<Check> checks = checks_of(
      make_faulty_backend(subject.backend, subject.weights, subject.knobs, Fault::kWindowLostOnRestore)
          .value());
  EXPECT_EQ(check_of(checks, "restored equals one-shot").outcome, Outcome::kFail);
}

TEST(Acceptance, SeesAnExpertThatIsNamedTwice) {
  ModelWeights weights = *embedded_weights();
  MoeWeights& moe = weights.layers[0].ffn;
  ASSERT_FALSE(moe.tid2eid.empty());
  std::vector<std::int32_t> table(moe.tid2eid.begin(), moe.tid2eid.end());
  table[9] = table[8];
  moe.tid2eid = table;
  const Finding finding = check_router(weights);
  EXPECT_EQ(finding.outcome, Outcome::kFail);
  EXPECT_NE(finding.detail.find("twice for token 2"), std::string::npos) << finding.detail;
}

}  // namespace
}  // namespace pivot::recall
