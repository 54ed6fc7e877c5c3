#include "checkpoint/plan/weight_bytes.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace pivot {

namespace {

void place_bytes(ModelBytes& bytes, const std::optional<TensorPlace>& place, std::int64_t count) {
  if (!place) {
    bytes.other += count;
    return;
  }
  if (place->block < 0) {
    bytes.global.add(*place, count);
    return;
  }
  // A name is outside data: a block index beyond any model is not worth a table of that size.
  constexpr std::int32_t kMostBlocks = 4096;
  if (place->block >= kMostBlocks) {
    bytes.other += count;
    return;
  }
  auto& blocks = place->draft ? bytes.drafts : bytes.layers;
  if (blocks.size() <= static_cast<std::size_t>(place->block))
    blocks.resize(static_cast<std::size_t>(place->block) + 1);
  blocks[static_cast<std::size_t>(place->block)].add(*place, count);
}

// Fused expert stacks of the transformers style: "model.layers.3.mlp.experts.gate_up_proj".
std::optional<TensorPlace> fused_expert_place(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  TensorPlace place;
  const auto [at, error] = std::from_chars(name.data(), name.data() + name.size(), place.block);
  if (error != std::errc() || place.block < 0) return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(at - name.data()));
  if (!name.starts_with(".mlp.experts.")) return std::nullopt;
  place.module = Module::kRoutedExpert;
  return place;
}

}  // namespace

std::int64_t WeightBytes::total() const {
  return std::accumulate(sharded.begin(), sharded.end(), std::int64_t{0}) +
         std::accumulate(replicated.begin(), replicated.end(), std::int64_t{0});
}

void WeightBytes::add(const TensorPlace& place, std::int64_t bytes) {
  auto& kind = sharded_by_tensor_parallelism(place) ? sharded : replicated;
  kind[static_cast<std::size_t>(place.module)] += bytes;
}

std::int64_t ModelBytes::of(Module module) const {
  std::int64_t sum = global.of(module);
  for (const WeightBytes& layer : layers) sum += layer.of(module);
  return sum;
}

std::int64_t ModelBytes::backbone() const {
  std::int64_t sum = global.total();
  for (const WeightBytes& layer : layers) sum += layer.total();
  return sum;
}

std::int64_t ModelBytes::draft() const {
  std::int64_t sum = 0;
  for (const WeightBytes& stage : drafts) sum += stage.total();
  return sum;
}

std::int64_t ModelBytes::sharded() const {
  std::int64_t sum = std::accumulate(global.sharded.begin(), global.sharded.end(), std::int64_t{0});
  for (const WeightBytes& layer : layers)
    sum += std::accumulate(layer.sharded.begin(), layer.sharded.end(), std::int64_t{0});
  return sum;
}

std::int64_t ModelBytes::replicated() const { return backbone() - sharded(); }

ModelBytes model_bytes(std::span<const StoredDeclaration> tensors) {
  ModelBytes bytes;
  for (const StoredDeclaration& tensor : tensors) place_bytes(bytes, place_of(tensor.name), tensor.bytes());
  return bytes;
}

ModelBytes model_bytes(const TensorTable& table) {
  ModelBytes bytes;
  for (const TensorInfo& tensor : table.tensors()) {
    const auto count = static_cast<std::int64_t>(tensor.bytes());
    if (const auto place = place_of(tensor.name)) {
      place_bytes(bytes, place, count);
    } else if (const auto native = native_name_of(tensor.name)) {
      place_bytes(bytes, place_of(*native), count);
    } else {
      place_bytes(bytes, fused_expert_place(tensor.name), count);
    }
  }
  return bytes;
}

}  // namespace pivot
