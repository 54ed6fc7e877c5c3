#include "ops/knobs.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace pivot {
namespace {

// The spellings of a table row, with the number range replaced by numbers.
std::vector<std::string> spellings(const KnobInfo& info) {
  std::vector<std::string> values;
  std::string text(info.values);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(" | ", begin), text.size());
    const std::string value = text.substr(begin, end - begin);
    if (value.find("..") != std::string::npos) {
      values.insert(values.end(), {"1", "17", "262144"});
    } else {
      values.push_back(value);
    }
    begin = end + 3;
  }
  return values;
}

TEST(Knobs, DefaultsAreTheReference) {
  const Knobs knobs;
  EXPECT_EQ(describe(knobs), "reference");
  EXPECT_EQ(knob_table().size(), 10u);
  for (const KnobInfo& info : knob_table())
    EXPECT_EQ(knob_value(knobs, info.name), info.default_value) << info.name;
}

TEST(Knobs, EverySpellingRoundTripsAndChangesOnlyItsKnob) {
  for (const KnobInfo& info : knob_table()) {
    for (const std::string& value : spellings(info)) {
      Knobs knobs;
      ASSERT_TRUE(set_knob(knobs, info.name, value).has_value()) << info.name << "=" << value;
      EXPECT_EQ(knob_value(knobs, info.name), value);
      for (const KnobInfo& other : knob_table())
        EXPECT_TRUE(other.name == info.name || knob_value(knobs, other.name) == other.default_value)
            << other.name;
      const std::string expected =
          value == info.default_value ? "reference" : std::string(info.name) + "=" + value;
      EXPECT_EQ(describe(knobs), expected);
      EXPECT_EQ(knobs == Knobs{}, value == info.default_value);
    }
  }
}

TEST(Knobs, StateHashTellsEveryStateKnobApart) {
  std::set<std::uint64_t> hashes = {state_hash({})};
  for (const KnobInfo& info : knob_table()) {
    for (const std::string& value : spellings(info)) {
      if (value == info.default_value) continue;
      Knobs knobs;
      ASSERT_TRUE(set_knob(knobs, info.name, value).has_value());
      EXPECT_EQ(hashes.insert(state_hash(knobs)).second, info.changes_state) << info.name << "=" << value;
    }
  }
}

TEST(Knobs, RefusalsListWhatIsPossible) {
  Knobs knobs;
  const Result<> name = set_knob(knobs, "index_top_k", "512");
  ASSERT_FALSE(name.has_value());
  EXPECT_EQ(name.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(name.error().message.find("index_top_k"), std::string::npos);
  for (const KnobInfo& info : knob_table())
    EXPECT_NE(name.error().message.find(info.name), std::string::npos);

  const Result<> value = set_knob(knobs, "index_keys", "fp6");
  ASSERT_FALSE(value.has_value());
  EXPECT_NE(value.error().message.find("fp4 | fp8 | bf16"), std::string::npos);
  for (const char* bad : {"0", "-1", "262145", "5x", "", "99999999999999999999", "ALL", " 5"})
    EXPECT_FALSE(set_knob(knobs, "index_topk", bad).has_value()) << bad;
  for (const KnobInfo& info : knob_table())
    EXPECT_FALSE(set_knob(knobs, info.name, "").has_value()) << info.name;
  EXPECT_EQ(knobs, Knobs{});
}

TEST(Knobs, AssignmentsApplyTogetherOrNotAtAll) {
  Knobs knobs;
  const std::vector<std::string> good = {"kv=bf16", "index_topk=all", "kv=fp8", "mhc=tf32"};
  ASSERT_TRUE(set_knobs(knobs, good).has_value());
  EXPECT_EQ(describe(knobs), "index_topk=all mhc=tf32");
  const Knobs before = knobs;
  for (const std::vector<std::string>& bad :
       {std::vector<std::string>{"kv=bf16", "kv"}, {"kv=bf16", "nope=1"}, {"kv=bf16", "=fp8"}})
    EXPECT_FALSE(set_knobs(knobs, bad).has_value());
  EXPECT_EQ(knobs, before);
}

}  // namespace
}  // namespace pivot
