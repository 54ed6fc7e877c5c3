// Every golden run within its tolerance, on every CPU back-end (PIVOT_TEST_BACKENDS=cpu,cpu-reference
// chooses).
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "engine/devices.h"
#include "model/parity.h"
#include "model/runner.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

struct Case {
  std::string backend;
  ParityCase parity;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& backend : tested_backends())
    for (ParityCase& parity : parity_cases()) cases.push_back({backend, std::move(parity)});
  return cases;
}

class Parity : public testing::TestWithParam<Case> {};

TEST_P(Parity, WithinTolerance) {
  const Case& test = GetParam();
  for (const std::string& needed : test.parity.needs) {
    PIVOT_NEED_DATA(path, needed);
    ASSERT_FALSE(path.empty());
  }
  const auto backend = make_backend(test.backend, 2);
  ASSERT_TRUE(backend) << backend.error().to_string();
  const std::vector<Metric> metrics = test.parity.run(*backend);
  ASSERT_FALSE(metrics.empty());
  for (const Metric& metric : metrics)
    EXPECT_TRUE(metric.ok()) << test.parity.id() << ": " << metric.name << " is " << metric.value << ", "
                             << (metric.at_least ? "at least " : "at most ") << metric.limit << " is right";
}

INSTANTIATE_TEST_SUITE_P(Goldens, Parity, testing::ValuesIn(all_cases()), [](const auto& parameter) {
  std::string name = parameter.param.backend + "_" + parameter.param.parity.id();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace pivot::test
