// Element types as safetensors names them, plus their widths.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pivot {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

// Bytes of one element. (Packed FP4 is stored as kI8 or kU8, two codes a byte.)
std::int64_t dtype_bytes(DType dtype);
// "F8_E4M3", the spelling in safetensors headers.
std::string_view dtype_name(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

}  // namespace pivot
