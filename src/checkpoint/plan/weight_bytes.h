// Weight bytes by block and module, the only thing about weights that memory and bandwidth plans need.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/modules/modules.h"
#include "checkpoint/safetensors.h"

namespace pivot {

// Bytes of one block, or of the tensors outside blocks. `sharded` is what tensor parallelism splits over
// ranks.
struct WeightBytes {
  std::array<std::int64_t, kNumModules> sharded{};
  std::array<std::int64_t, kNumModules> replicated{};

  std::int64_t of(Module module) const {
    const auto at = static_cast<std::size_t>(module);
    return sharded[at] + replicated[at];
  }
  std::int64_t total() const;
  void add(const TensorPlace& place, std::int64_t bytes);
};

struct ModelBytes {
  WeightBytes global;               // embedding, head, norm, hc_head
  std::vector<WeightBytes> layers;  // backbone blocks
  std::vector<WeightBytes> drafts;  // MTP or DSpark stages
  std::int64_t other = 0;           // tensors that no module claims

  std::int64_t of(Module module) const;  // global and backbone
  std::int64_t backbone() const;
  std::int64_t draft() const;
  std::int64_t total() const { return backbone() + draft() + other; }
  // Backbone and global bytes that every rank holds under tensor parallelism, and those that are split.
  std::int64_t replicated() const;
  std::int64_t sharded() const;
};

ModelBytes model_bytes(std::span<const StoredDeclaration> tensors);
// From headers, in either naming style.
ModelBytes model_bytes(const TensorTable& table);

}  // namespace pivot
