#include "base/error.h"

#include <gtest/gtest.h>
#include <sysexits.h>

namespace pivot {
namespace {

Result<int> parse(int value) {
  if (value < 0) return fail(ErrorCode::kInvalidArgument, "wanted a count, found {}", value);
  return value;
}

Result<int> outer(int value) {
  PIVOT_TRY(const int parsed, parse(value));
  return parsed + 1;
}

TEST(Error, TravelsThroughTry) {
  EXPECT_EQ(*outer(1), 2);
  const auto failed = outer(-3);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "wanted a count, found -3");
}

TEST(Error, ContextPrintsOutermostFirst) {
  Error error = Error{ErrorCode::kIo, "short read", {}}.with("tensor a").with("file b");
  EXPECT_EQ(error.to_string(), "file b: tensor a: short read");
}

TEST(Error, EveryCodeHasAnExitCodeAndAnHttpStatus) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    const ErrorMapping& m = mapping(static_cast<ErrorCode>(code));
    EXPECT_GE(m.exit_code, EX__BASE) << m.name;
    EXPECT_GE(m.http_status, 400) << m.name;
  }
  EXPECT_EQ(mapping(ErrorCode::kInternal).exit_code, EX_SOFTWARE);
  EXPECT_EQ(mapping(ErrorCode::kContextOverflow).openai_code, "context_length_exceeded");
}

}  // namespace
}  // namespace pivot
