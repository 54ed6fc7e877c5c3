// Strong types for the integers that must not be mixed up at an interface.
#pragma once

#include <cstdint>

namespace pivot {

enum class TokenId : std::int32_t {};   // row of embed.weight / column of the logits
enum class Position : std::int32_t {};  // 0-based position of a token in its sequence
enum class PageId : std::int32_t {};    // page of one cache component
enum class LayerIndex : std::int32_t {};

constexpr std::int32_t raw(TokenId id) { return static_cast<std::int32_t>(id); }
constexpr std::int32_t raw(Position p) { return static_cast<std::int32_t>(p); }
constexpr std::int32_t raw(PageId p) { return static_cast<std::int32_t>(p); }
constexpr std::int32_t raw(LayerIndex l) { return static_cast<std::int32_t>(l); }

}  // namespace pivot
