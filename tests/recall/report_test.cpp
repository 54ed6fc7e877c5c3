// What the reports of runs, attributions and acceptances say, and that their JSON is what docs/schema says.
#include "recall/report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/report/html.h"
#include "base/report/text.h"
#include "recall/acceptance.h"
#include "recall/attribution.h"
#include "support/json_schema.h"
#include "support/test_data.h"

namespace pivot::recall {
namespace {

using nlohmann::json;

constexpr report::TextStyle kWide{100'000, false};  // so that no sentence is wrapped

// One of the two forms of docs/schema/recall.json, its references to cases resolved.
std::vector<std::string> recall_faults(const std::string& text, const char* form) {
  const std::filesystem::path folder = test::source_dir() / "docs/schema";
  std::ifstream in(folder / "recall.json");
  json schema = json::parse(in);
  schema["$defs"]["run"]["properties"]["cases"]["items"] = schema["$defs"]["case"];
  return test::schema_faults(json::parse(text), schema["$defs"][form], folder);
}

CaseResult answered(std::int64_t length, double depth, std::int64_t sample, bool right) {
  CaseResult result;
  result.spec = {Task::kSingle, length, depth, 0, 4, sample, 1};
  result.id = result.spec.id();
  result.prompt_tokens = length;
  result.facts = {{8, 11}};
  result.expected = {"482913"};
  result.answer = right ? "482913" : "The <secret> is lost.";
  result.score = {right, right ? 1.0 : 0.0, right ? 1.0 : 0.1};
  result.finish_reason = "stop";
  result.fidelity = {{1, 4, 4, 0.75, 0.01, 0.5, 0.9, depth, 0, 0, 1}, {3, 4, 0, 1, 0, 1, 1, 1, -1, -1, 1}};
  return result;
}

RunFacts facts() {
  RunFacts facts{"embedded", "cpu", "reference", "needle", "the shipped excerpt", "single; 512 tokens"};
  facts.wanted_cases = 6;
  return facts;
}

std::vector<CaseResult> results() {
  std::vector<CaseResult> all = {answered(512, 0, 0, true), answered(512, 1, 0, true),
                                 answered(1024, 0, 0, false), answered(1024, 1, 0, true)};
  all.push_back(answered(1024, 1, 1, false));
  all.back().failure = "the server sent nothing more for 120 s";
  all.back().fidelity.clear();
  return all;
}

TEST(Report, CountsAnswersAndListsWhatGotNone) {
  RunFacts stopped = facts();
  stopped.partial = true;
  const report::Document document = run_document(stopped, results());
  const std::string text = report::render_text(document, kWide);
  EXPECT_NE(text.find("PARTIAL: stopped after 5 of 6 cases"), std::string::npos) << text;
  EXPECT_NE(text.find("3 of 4 answers are right: recall 0.750 [0.30, 0.95]"), std::string::npos) << text;
  EXPECT_NE(text.find("1 of 5 cases got no answer"), std::string::npos) << text;
  EXPECT_NE(text.find("sent nothing more for 120 s"), std::string::npos) << text;
  EXPECT_NE(text.find("By depth of the fact"), std::string::npos) << text;
  const std::string html = report::render_html(document);
  EXPECT_NE(html.find("The &lt;secret&gt; is lost."), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_EQ(html.find("http"), html.find("http://www.w3.org/2000/svg"));  // nothing is fetched
}

TEST(Report, HasNoFiguresWhereNothingWasAnswered) {
  std::vector<CaseResult> none = {results().back()};
  const std::string text = report::render_text(run_document(facts(), none), kWide);
  EXPECT_NE(text.find("None of 1 cases got an answer"), std::string::npos) << text;
  EXPECT_EQ(text.find("By length"), std::string::npos) << text;
  for (const std::string& fault : recall_faults(run_json(facts(), none), "run")) ADD_FAILURE() << fault;
}

TEST(Report, JsonIsWhatTheSchemaSays) {
  const std::string text = run_json(facts(), results());
  for (const std::string& fault : recall_faults(text, "run")) ADD_FAILURE() << fault;
  const json run = json::parse(text);
  EXPECT_EQ(run["unanswered_cases"], 1);
  EXPECT_EQ(run["tasks"][0]["cases"], 4);
  EXPECT_EQ(run["tasks"][0]["right"], 3);
  ASSERT_EQ(run["fidelity"].size(), 4u);  // two lengths, two layers
  EXPECT_EQ(run["fidelity"][0]["length"], 512);
  EXPECT_EQ(run["fidelity"][0]["overlap"], 0.75);
  ASSERT_EQ(run["fidelity_by_depth"].size(), 4u);
  EXPECT_EQ(run["fidelity_by_depth"][2]["depth"], 1);
  EXPECT_EQ(run["fidelity_by_depth"][2]["layer"], 1);
  EXPECT_EQ(run["fidelity_by_depth"][2]["queries"], 8);
}

TEST(Report, AnAttributionSaysVerdictEvidenceAndWhatStayedOpen) {
  Attribution a;
  a.cases = 40;
  a.right = 20;
  for (AuditCount& count : a.audit) count.checked = 100;
  a.audit[0].checked = 0;
  a.fidelity = {{1, 40, 40, 0.75, 0.01, 0.22, 0.9, 0.5, 0, 0, 1}};
  VariantResult all;
  all.variant = {"all entries attended", "leaving entries out", Suspect::kSelection, "index_topk=all", {}, 0};
  all.pairs = {20, 0, 0, 20};
  all.cases = all.right = 40;
  all.p = all.p_holm = mcnemar_exact(all.pairs);
  all.gain = paired_interval(all.pairs);
  VariantResult refused;
  refused.variant.name = "twin checkpoint";
  refused.unsupported = "another vocabulary";
  a.variants = {all, refused};
  a.unreached = {"odd steps"};
  a.verdict = judge(a);
  const std::string text = report::render_text(attribution_document(facts(), a), kWide);
  for (const char* wanted :
       {"PARTIAL: stopped before 1 of 3 alternatives", "Leaving entries out costs 50 of 100 points",
        "22 % in layer 1", "--knob index_topk=all", "What it rests on", "Ruled out", "Not settled",
        "compressor state between steps", "not run: another vocabulary"})
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " in\n" << text;
  const std::string written = attribution_json(facts(), a);
  for (const std::string& fault : recall_faults(written, "attribution")) ADD_FAILURE() << fault;
  EXPECT_EQ(json::parse(written)["verdict"]["kind"], "setting");
}

TEST(Report, AnAcceptanceSaysWhatFailed) {
  std::vector<Check> checks = {{"1", "header audit", Outcome::kPass, "fine", 0},
                               {"13", "official answers", Outcome::kSkipped, "none were given", 0}};
  const auto text_of = [&] {
    return report::render_text(acceptance_document("embedded", "on cpu, knobs: reference", checks), kWide);
  };
  EXPECT_NE(text_of().find("Accepted: 1 passed, 0 failed, 1 skipped."), std::string::npos) << text_of();
  checks.push_back({"14", "recall grid", Outcome::kFail, "3 of 45 right", 1});
  EXPECT_NE(text_of().find("NOT accepted: 1 passed, 1 failed, 1 skipped. Failed: recall grid."),
            std::string::npos)
      << text_of();
  for (const std::string& fault : test::schema_faults(acceptance_json("embedded", checks), "accept.json"))
    ADD_FAILURE() << fault;
}

}  // namespace
}  // namespace pivot::recall
