// Bytes of a placed model, from shapes alone.
#include "ops/cuda/placement/placed_size.h"

#include <gtest/gtest.h>

#include "checkpoint/flash_config.h"
#include "checkpoint/weight_shapes.h"

namespace pivot::cuda {
namespace {

// The backbone of the published checkpoint is 156.02 GB; tiles spend 4 bytes a 16 x 128 tile on FP8 scales
// instead of one a 128 x 128 block, and every part ends at a multiple of 256 bytes.
TEST(PlacedSize, FlashIsTheCheckpointAndALittlePadding) {
  const std::int64_t bytes = placed_bytes(shape_weights(flash_config(43)));
  EXPECT_GT(bytes, 156'016'000'000);
  EXPECT_LT(bytes, 156'100'000'000);
}

TEST(PlacedSize, AliasedExpertsTakeNoMemory) {
  const ModelWeights shapes = shape_weights(flash_config(4));
  const std::int64_t expert = 3 * 2048 * 4096 / 2 + 3 * 2048 * 4096 / 32;  // 13.37 MB, a multiple of 256 each
  EXPECT_EQ(placed_bytes(shapes) - placed_bytes(shapes, 232), 4 * 24 * expert);
  EXPECT_EQ(placed_bytes(shapes, 256), placed_bytes(shapes));
}

TEST(PlacedSize, ShapesArePlaceable) {
  EXPECT_TRUE(check_placeable(shape_weights(flash_config(4))));
  ModelWeights odd = shape_weights(flash_config(4));
  odd.layers[2].ffn.experts[7].w2.format = MatrixFormat::kFP8;
  const Result<> mixed = check_placeable(odd);
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.error().to_string().find("layers.2"), std::string::npos) << mixed.error().to_string();
}

}  // namespace
}  // namespace pivot::cuda
