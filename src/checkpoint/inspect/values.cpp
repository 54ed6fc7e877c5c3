// Facts that need the values: lossless casts, BF16-representable hyper-connections, repeated experts in hash
// tables.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/inspect/inspection.h"
#include "numeric/formats.h"

namespace pivot {

namespace {

template <class T>
T read_at(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

bool is_power_of_two(float value) {
  if (!(value > 0) || !std::isfinite(value)) return false;
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5f;
}

// E4M3 codes that are powers of two: mantissa 0 with an exponent, or one of the subnormals 2^-9, 2^-8, 2^-7.
constexpr bool is_power_of_two_e4m3(std::uint8_t code) {
  if ((code & 0x80u) != 0) return false;
  if ((code >> 3) != 0) return (code & 7u) == 0;
  return code == 1 || code == 2 || code == 4;
}

}  // namespace

Nvfp4ScaleVerdict check_nvfp4_scales(const std::uint8_t* scales, const std::uint8_t* codes, std::int64_t rows,
                                     std::int64_t columns, float global_scale) {
  constexpr std::int64_t kCodeBytes = 8;  // of a block of 16
  Nvfp4ScaleVerdict verdict;
  if (!is_power_of_two(global_scale)) ++verdict.not_power_of_two;
  // A block of zeros may carry any scale without changing a value.
  const auto all_zero = [&](std::int64_t block) {
    const std::uint8_t* at = codes + block * kCodeBytes;
    return std::all_of(at, at + kCodeBytes, [](std::uint8_t code) { return (code & 0x77u) == 0; });
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t block = row * columns + column;
      if (!is_power_of_two_e4m3(scales[block]) && !all_zero(block)) ++verdict.not_power_of_two;
      if (column % 2 == 1 && scales[block] != scales[block - 1] && !all_zero(block) && !all_zero(block - 1))
        ++verdict.unequal_pairs;
    }
  }
  return verdict;
}

Nvfp4Facts check_nvfp4(const Checkpoint& checkpoint, ValueCheck depth) {
  constexpr std::int32_t kSampledExperts = 2;  // per block, spread over the ids
  Nvfp4Facts facts;
  constexpr std::string_view kSuffix = ".weight_scale_2";
  std::int32_t most_experts = 0;
  for (const TensorInfo& tensor : checkpoint.table().tensors()) {
    const auto place = place_of(tensor.name);
    if (place && place->module == Module::kRoutedExpert)
      most_experts = std::max(most_experts, place->expert + 1);
  }
  const std::int32_t stride = std::max(1, most_experts / kSampledExperts);
  for (const TensorInfo& second : checkpoint.table().tensors()) {
    if (!second.name.ends_with(kSuffix)) continue;
    ++facts.matrices;
    const auto place = place_of(second.name);
    // Sampled experts differ from layer to layer, so that a fault of one expert id is met sooner.
    if (depth == ValueCheck::kSample && place && (place->expert + place->block) % stride != 0) continue;
    const std::string stem = second.name.substr(0, second.name.size() - kSuffix.size());
    const TensorInfo* scale = checkpoint.table().find(stem + ".weight_scale");
    const TensorInfo* weight = checkpoint.table().find(stem + ".weight");
    if (scale == nullptr || weight == nullptr || scale->shape.size() != 2 || scale->dtype != DType::kF8E4M3 ||
        second.dtype != DType::kF32 || second.bytes() < 4 || weight->bytes() != scale->bytes() * 8)
      continue;
    const auto* scales = reinterpret_cast<const std::uint8_t*>(checkpoint.view(*scale).data);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(checkpoint.view(*weight).data);
    const auto global_scale = read_at<float>(checkpoint.view(second).data, 0);
    const Nvfp4ScaleVerdict verdict =
        check_nvfp4_scales(scales, codes, scale->shape[0], scale->shape[1], global_scale);
    ++facts.checked;
    facts.not_power_of_two += verdict.not_power_of_two;
    facts.unequal_pairs += verdict.unequal_pairs;
    if (verdict.not_power_of_two == 0 && verdict.unequal_pairs == 0) {
      ++facts.lossless;
    } else if (facts.example.empty()) {
      facts.example = fmt::format("{}: {} scales are no power of two, {} pairs differ", stem,
                                  verdict.not_power_of_two, verdict.unequal_pairs);
    }
    checkpoint.release_pages(*scale);
    checkpoint.release_pages(*weight);
  }
  return facts;
}

HyperConnectionFacts check_hyper_connections(const Checkpoint& checkpoint) {
  HyperConnectionFacts facts;
  for (const TensorInfo& tensor : checkpoint.table().tensors()) {
    std::string_view name = tensor.name;
    std::optional<std::string> native;
    if (!place_of(name) && (native = native_name_of(name))) name = *native;
    const auto place = place_of(name);
    if (!place || place->module != Module::kHyperConnection || !place->part.ends_with("_fn")) continue;
    ++facts.tensors;
    if (tensor.dtype != DType::kF32) continue;
    const TensorView view = checkpoint.view(tensor);
    for (std::int64_t i = 0; i < view.elements(); ++i)
      facts.not_bf16 += (read_at<std::uint32_t>(view.data, i) & 0xffffu) != 0 ? 1 : 0;
    facts.values += view.elements();
    checkpoint.release_pages(tensor);
  }
  return facts;
}

HashTableFacts check_hash_tables(const Checkpoint& checkpoint, std::int64_t num_experts) {
  HashTableFacts facts;
  for (const TensorInfo& tensor : checkpoint.table().tensors()) {
    if (!tensor.name.ends_with("gate.tid2eid") || tensor.shape.size() != 2) continue;
    if (tensor.dtype != DType::kI64 && tensor.dtype != DType::kI32) continue;
    ++facts.tables;
    const TensorView view = checkpoint.view(tensor);
    const std::int64_t width = tensor.shape[1];
    std::vector<std::int64_t> row(static_cast<std::size_t>(width));
    for (std::int64_t r = 0; r < tensor.shape[0]; ++r) {
      for (std::int64_t k = 0; k < width; ++k) {
        const std::int64_t at = r * width + k;
        const std::int64_t id = tensor.dtype == DType::kI64 ? read_at<std::int64_t>(view.data, at)
                                                            : read_at<std::int32_t>(view.data, at);
        row[static_cast<std::size_t>(k)] = id;
        facts.ids_out_of_range += id < 0 || id >= num_experts ? 1 : 0;
      }
      std::sort(row.begin(), row.end());
      if (std::adjacent_find(row.begin(), row.end()) == row.end()) continue;
      ++facts.rows_with_duplicates;
      if (facts.example.empty()) facts.example = fmt::format("{} row {}", tensor.name, r);
    }
    facts.rows += tensor.shape[0];
    checkpoint.release_pages(tensor);
  }
  return facts;
}

}  // namespace pivot
