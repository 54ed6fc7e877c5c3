#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "recall/runner.h"
#include "support/test_data.h"

namespace pivot::recall {
namespace {

CaseResult result(const std::string& id) {
  CaseResult r;
  r.id = id;
  r.spec = {Task::kMultiKey, 1024, 0.25, 3, 4, 2, 7};
  r.prompt_tokens = 1023;
  r.facts = {{10, 12}};
  r.expected = {"482913"};
  r.answer = "line one\n\"quoted\" \xff";
  r.score = {true, 1, 0.5};
  r.finish_reason = "stop";
  r.fidelity = {{1, 4, 3, 0.75, 0.1, 0.9, 0.95, 0.5, 2, 1, 0.5}};
  return r;
}

TEST(CaseLog, GivesBackWhatWasAppended) {
  const auto path = test::scratch_dir() / "log.jsonl";
  {
    CaseLog log = CaseLog::open(path, R"({"a":1})", false).value();
    ASSERT_TRUE(log.append(result("x")));
    ASSERT_TRUE(log.append(result("y")));
  }
  const CaseLog log = CaseLog::open(path, R"({"a":1})", true).value();
  EXPECT_EQ(log.size(), 2u);
  ASSERT_NE(log.find("x"), nullptr);
  EXPECT_EQ(log.find("z"), nullptr);
  const CaseResult& r = *log.find("x");
  EXPECT_EQ(r.spec.task, Task::kMultiKey);
  EXPECT_EQ(r.facts[0].end, 12);
  EXPECT_TRUE(r.score.exact);
  EXPECT_EQ(r.fidelity.at(0).fact_rank, 2);
  EXPECT_EQ(to_json(r), to_json(parse_case_result(to_json(r)).value()));
}

TEST(CaseLog, DropsATornLine) {
  const auto path = test::scratch_dir() / "torn.jsonl";
  {
    CaseLog log = CaseLog::open(path, R"({"a":1})", false).value();
    ASSERT_TRUE(log.append(result("x")));
  }
  std::ofstream(path, std::ios::app) << to_json(result("y")).substr(0, 40);
  {
    CaseLog log = CaseLog::open(path, R"({"a":1})", true).value();
    EXPECT_EQ(log.size(), 1u);
    ASSERT_TRUE(log.append(result("z")));
  }
  EXPECT_EQ(CaseLog::open(path, R"({"a":1})", true)->size(), 2u);
}

TEST(CaseLog, RefusesOtherRuns) {
  const auto path = test::scratch_dir() / "other.jsonl";
  ASSERT_TRUE(CaseLog::open(path, R"({"seed":1})", false));
  const auto again = CaseLog::open(path, R"({"seed":1})", false);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("--resume"), std::string::npos);
  const auto other = CaseLog::open(path, R"({"seed":2})", true);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("seed is 1 there and 2 now"), std::string::npos)
      << other.error().message;
  std::ofstream(path, std::ios::app) << "{}\n";
  EXPECT_EQ(CaseLog::open(path, R"({"seed":1})", true).error().code, ErrorCode::kInvalidData);
}

}  // namespace
}  // namespace pivot::recall
