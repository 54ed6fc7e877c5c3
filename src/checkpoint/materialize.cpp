#include "checkpoint/materialize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "numeric/formats.h"

namespace pivot {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

template <class T>
T read_unaligned(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// The first byte whose lower seven bits are all set: an E4M3 NaN. Eight bytes at a time, because a checkpoint
// in NVFP4 has 17 GB of such scales: adding one to the lower seven bits carries into bit 7 exactly for 0x7f.
std::optional<std::uint64_t> find_e4m3_nan(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kLow = 0x7f7f7f7f7f7f7f7full;
  constexpr std::uint64_t kOne = 0x0101010101010101ull;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    if ((((read_unaligned<std::uint64_t>(bytes.subspan(i), 0) & kLow) + kOne) & ~kLow) != 0) break;
  }
  for (; i < bytes.size(); ++i) {
    if ((std::to_integer<unsigned>(bytes[i]) & 0x7fu) == 0x7fu) return i;
  }
  return std::nullopt;
}

}  // namespace

void WeightArena::Free::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kAlignment});
}

std::span<std::byte> WeightArena::allocate(std::size_t bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded > rest_.size()) {
    const std::size_t chunk = std::max(rounded, kChunkBytes);
    auto* memory = static_cast<std::byte*>(::operator new (chunk, std::align_val_t{kAlignment}));
    chunks_.emplace_back(memory);
    if (rounded == chunk) return {memory, bytes};  // a chunk of its own: keep the rest of the previous one
    rest_ = {memory, chunk};
  }
  const auto result = rest_.first(bytes);
  rest_ = rest_.subspan(rounded);
  return result;
}

std::optional<std::uint64_t> find_bad_scale(ScaleFormat format, std::span<const std::byte> scales) {
  switch (format) {
    case ScaleFormat::kNone:
      return std::nullopt;
    case ScaleFormat::kE8M0: {
      if (scales.empty()) return std::nullopt;
      const void* found = std::memchr(scales.data(), kE8m0Nan, scales.size());
      if (found == nullptr) return std::nullopt;
      return static_cast<std::uint64_t>(static_cast<const std::byte*>(found) - scales.data());
    }
    case ScaleFormat::kE4M3:
      return find_e4m3_nan(scales);
    case ScaleFormat::kF32:
      for (std::size_t i = 0; i < scales.size() / sizeof(float); ++i) {
        if (!std::isfinite(read_unaligned<float>(scales, i))) return i;
      }
      return std::nullopt;
  }
  return std::nullopt;
}

bool all_bf16(FloatSpan values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return (std::bit_cast<std::uint32_t>(value) & 0xffffu) == 0; });
}

std::string Materializer::where(const TensorInfo& part) const {
  return fmt::format("{}: tensor {}", checkpoint_.table().file_of(part), quote_name(part.name));
}

std::span<const std::byte> Materializer::bytes_of(const TensorInfo& part, std::uint64_t offset,
                                                  std::uint64_t size) const {
  return {checkpoint_.view(part).data + offset, size};
}

// Elements wider than a byte at an address that is no multiple of their width are copied: a safetensors
// header of odd length leaves its data there.
const std::byte* Materializer::aligned(std::span<const std::byte> bytes, std::size_t width) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % width == 0) return bytes.data();
  const auto copy = arena_.allocate(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.begin());
  bytes_read_ += bytes.size();
  return copy.data();
}

void Materializer::check_scales(const StoredTensor& tensor, std::span<const std::byte> scales) {
  bytes_read_ += scales.size();
  const auto bad = find_bad_scale(tensor.scale_format, scales);
  if (!bad) return;
  const auto scale_cols = static_cast<std::uint64_t>(tensor.scale->shape.back());
  problems_.add(ErrorCode::kInvalidData,
                "{} ({} scales) holds a NaN at row {}, column {}; fetch the file again", where(*tensor.scale),
                tensor.scale_format == ScaleFormat::kF32 ? "F32" : dtype_name(tensor.scale->dtype),
                *bad / scale_cols, *bad % scale_cols);
}

float Materializer::scalar(const TensorInfo& part) {
  bytes_read_ += sizeof(float);
  const float value = read_unaligned<float>(bytes_of(part, 0, part.bytes()), 0);
  if (!std::isfinite(value) || value <= 0.0f) {
    problems_.add(ErrorCode::kInvalidData, "{} is {}; a positive number was wanted", where(part), value);
  }
  return value;
}

Matrix Materializer::matrix(const StoredTensor& tensor) {
  Matrix m;
  m.format = tensor.format;
  m.scale_format = tensor.scale_format;
  m.rows = tensor.rows;
  m.cols = tensor.cols;
  const std::size_t width = tensor.format == MatrixFormat::kBF16  ? 2
                            : tensor.format == MatrixFormat::kF32 ? 4
                                                                  : 1;
  m.codes = aligned(bytes_of(*tensor.weight, tensor.code_offset, tensor.code_bytes), width);
  if (tensor.scale != nullptr) {
    const auto scales = bytes_of(*tensor.scale, tensor.scale_offset, tensor.scale_bytes);
    if (check_scales_) check_scales(tensor, scales);
    m.scales = aligned(scales, tensor.scale_format == ScaleFormat::kF32 ? 4 : 1);
  }
  const bool divisor = tensor.convention == Nvfp4Convention::kCompressedTensors;
  if (tensor.global_scale != nullptr) {
    const float value = scalar(*tensor.global_scale);
    m.global_scale = divisor ? 1.0f / value : value;
  }
  if (tensor.input_scale != nullptr) {
    const float value = scalar(*tensor.input_scale);
    m.input_scale = divisor ? 1.0f / value : value;
  }
  return m;
}

FloatSpan Materializer::vector(const StoredTensor& tensor) {
  const TensorInfo& part = *tensor.weight;
  const auto bytes = bytes_of(part, 0, part.bytes());
  bytes_read_ += bytes.size();
  const std::size_t count = bytes.size() / static_cast<std::size_t>(dtype_bytes(part.dtype));
  const auto values = arena_.allocate_values<float>(count);
  if (part.dtype == DType::kBF16) {
    for (std::size_t i = 0; i < count; ++i)
      values[i] = to_float(BF16{read_unaligned<std::uint16_t>(bytes, i)});
  } else {
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(values)).begin());
  }
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    problems_.add(ErrorCode::kInvalidData,
                  "{} holds {} at element {}; only finite numbers are usable, fetch the file again",
                  where(part), *bad, bad - values.begin());
  }
  return values;
}

std::span<const std::int32_t> Materializer::id_table(const StoredTensor& tensor, std::int64_t num_experts) {
  const TensorInfo& part = *tensor.weight;
  const auto bytes = bytes_of(part, 0, part.bytes());
  bytes_read_ += bytes.size();
  const bool wide = part.dtype == DType::kI64;
  const auto count = bytes.size() / (wide ? 8 : 4);
  const auto per_row = static_cast<std::size_t>(tensor.schema.shape[1]);
  const auto ids = arena_.allocate_values<std::int32_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t id =
        wide ? read_unaligned<std::int64_t>(bytes, i) : read_unaligned<std::int32_t>(bytes, i);
    if (id < 0 || id >= num_experts) {
      problems_.add(ErrorCode::kInvalidData, "{} names expert {} for token {}; experts 0 to {} exist",
                    where(part), id, i / per_row, num_experts - 1);
      return ids;  // one sentence per table is enough
    }
    ids[i] = static_cast<std::int32_t>(id);
    const std::size_t row = i / per_row * per_row;
    if (std::find(ids.begin() + static_cast<std::ptrdiff_t>(row),
                  ids.begin() + static_cast<std::ptrdiff_t>(i),
                  ids[i]) != ids.begin() + static_cast<std::ptrdiff_t>(i)) {
      problems_.add(
          ErrorCode::kInvalidData,
          "{} names expert {} twice for token {}; it would be counted twice, so the table is damaged",
          where(part), id, i / per_row);
      return ids;
    }
  }
  return ids;
}

}  // namespace pivot
