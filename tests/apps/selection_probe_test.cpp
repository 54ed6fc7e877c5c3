#include "selection_probe.h"

#include <gtest/gtest.h>

#include <array>

namespace pivot::cli {
namespace {

// What the forward pass shows a sink in one step of `tokens` tokens: layer 0's margins, then one layer's
// selection.
void step(SelectionProbe& probe, std::int64_t tokens, std::int32_t layer,
          const std::vector<std::int32_t>& selected) {
  const std::vector<float> margins(static_cast<std::size_t>(tokens));
  const std::array<std::int64_t, 1> margin_shape = {tokens};
  const std::array<std::int64_t, 2> shape = {tokens, static_cast<std::int64_t>(selected.size()) / tokens};
  probe.take({"gate_margin", 0, margin_shape, margins, {}});
  probe.take({"index_topk", layer, shape, {}, selected});
}

TEST(SelectionProbe, AsksForWhatItNeedsOnly) {
  const SelectionProbe probe(0);
  EXPECT_TRUE(probe.wants("index_topk", 3));
  EXPECT_TRUE(probe.wants("gate_margin", 0));
  EXPECT_FALSE(probe.wants("gate_margin", 1));
  EXPECT_FALSE(probe.wants("q", 0));
}

TEST(SelectionProbe, CountsPositionsOverSteps) {
  SelectionProbe probe(4);
  step(probe, 3, 1, {0, 1, 0, 1, 0, 1});   // positions 0..2: before the first wanted one
  step(probe, 3, 1, {9, 9, 2, 5, 7, -1});  // positions 3..5: the first is not wanted
  step(probe, 1, 1, {8, 4});               // position 6
  ASSERT_EQ(probe.selections().size(), 1u);
  const auto& layer = probe.selections().at(1);
  ASSERT_EQ(layer.size(), 3u);
  EXPECT_EQ(layer.at(4), (Selection{2, 5}));
  EXPECT_EQ(layer.at(5), (Selection{7}));
  EXPECT_EQ(layer.at(6), (Selection{4, 8}));
}

TEST(Overlap, IsTheShareOfWhatWasWanted) {
  EXPECT_EQ(overlap({1, 2, 3, 4}, {1, 2, 3, 4}), 1.0);
  EXPECT_EQ(overlap({1, 2, 9, 10}, {1, 2, 3, 4}), 0.5);
  EXPECT_EQ(overlap({}, {1}), 0.0);
  EXPECT_EQ(overlap({5}, {}), 1.0);
}

}  // namespace
}  // namespace pivot::cli
