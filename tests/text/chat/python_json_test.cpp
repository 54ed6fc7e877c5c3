#include "text/chat/python_json.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace pivot::python_json {
namespace {

std::string round_trip(std::string_view json) {
  const auto value = parse(json);
  return value ? dumps(*value) : "error: " + value.error().to_string();
}

// Expected values are what CPython 3.11 prints for json.dumps(json.loads(text), ensure_ascii=False).
TEST(PythonJson, SpellsValuesAsPython) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1", "1"},
      {"-0", "0"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-18446744073709551616", "-18446744073709551616"},
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"0e5", "0.0"},
      {"1E5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"1e20", "1e+20"},
      {"123456789012345678.0", "1.2345678901234568e+17"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"0.1", "0.1"},
      {"0.0001", "0.0001"},
      {"0.00012345", "0.00012345"},
      {"0.00001", "1e-05"},
      {"1.5e-7", "1.5e-07"},
      {"1e100", "1e+100"},
      {"1e22", "1e+22"},
      {"5e-324", "5e-324"},
      {"2e-324", "0.0"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"1e99999999999999999999", "Infinity"},
      {"1e-99999999999999999999", "0.0"},
      {"0.00000000000000000001e-99999999999999999999", "0.0"},
      {"3.141592653589793238", "3.141592653589793"},
      {"100.25", "100.25"},
      {"NaN", "NaN"},
      {"-Infinity", "-Infinity"},
      {"[]", "[]"},
      {"{}", "{}"},
      {" [ 1 ,\t2\n] ", "[1, 2]"},
      {"{\"b\":1,\"a\":[true,false,null]}", "{\"b\": 1, \"a\": [true, false, null]}"},
      {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}"},
      {"\"\\u00e9\\u4f60\\ud83d\\ude00\"", "\"é你😀\""},
      {"\"\\/ \\b\\f\\n\\r\\t\\\\ \\\"\"", "\"/ \\b\\f\\n\\r\\t\\\\ \\\"\""},
      {"\"\\u0000\\u001F\\u007f\"", std::string("\"\\u0000\\u001f\x7f\"")},
      {"\"\\u2028</script>\"", "\"\u2028</script>\""},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(round_trip(text), expected) << text;
}

TEST(PythonJson, ReplacesLoneSurrogates) {
  EXPECT_EQ(round_trip("\"\\ud800\""), "\"\uFFFD\"");
  EXPECT_EQ(round_trip("\"\\udc00x\""), "\"\uFFFDx\"");
  EXPECT_EQ(round_trip("\"\\ud83d\\u0041\""), "\"\uFFFDA\"");
  EXPECT_EQ(round_trip("\"\\ud83d\\ud83d\\ude00\""), "\"\uFFFD😀\"");
}

TEST(PythonJson, RefusesWhatPythonRefuses) {
  for (const std::string text : {"",
                                 " ",
                                 "{",
                                 "[1,]",
                                 "{\"a\":1,}",
                                 "{a:1}",
                                 "'a'",
                                 "01",
                                 "1.",
                                 ".5",
                                 "+1",
                                 "-",
                                 "1e",
                                 "nul",
                                 "\"a",
                                 "\"\\x41\"",
                                 "\"\\u12g4\"",
                                 "\"a\nb\"",
                                 "[1] 2",
                                 "\xEF\xBB\xBF[1]",
                                 "\"\xFF\"",
                                 "\"\xED\xA0\x80\"",
                                 "-NaN",
                                 "[1 2]"}) {
    const auto value = parse(text);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(PythonJson, LimitsDepthAndDigits) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse(nested(kMaxDepth)));
  EXPECT_FALSE(parse(nested(kMaxDepth + 1)));
  EXPECT_FALSE(parse(std::string(1000000, '[')));
  EXPECT_TRUE(parse(std::string(4300, '9')));
  EXPECT_FALSE(parse(std::string(4301, '9')));
}

TEST(PythonJson, KnowsWhatPythonCallsFalse) {
  for (const std::string text : {"null", "false", "0", "-0", "0.0", "-0.0", "\"\"", "[]", "{}"}) {
    EXPECT_FALSE(parse(text)->truthy()) << text;
  }
  for (const std::string text : {"true", "1", "NaN", "0.5", "\"0\"", "[0]", "{\"\":0}"}) {
    EXPECT_TRUE(parse(text)->truthy()) << text;
  }
}

}  // namespace
}  // namespace pivot::python_json
