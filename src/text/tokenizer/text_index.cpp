#include "text/tokenizer/text_index.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace pivot {
namespace {

std::uint64_t hash_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace

TextIndex::TextIndex(std::size_t count)
    : slots_(std::bit_ceil(std::max<std::size_t>(count * 2, 2)), Slot{0, -1}) {}

std::size_t TextIndex::slot_of(std::span<const std::string_view> texts, std::string_view text,
                               std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = (hash >> 32) & mask;
  for (; slots_[at].id >= 0; at = (at + 1) & mask) {
    if (slots_[at].hash_low == static_cast<std::uint32_t>(hash) &&
        texts[static_cast<std::size_t>(slots_[at].id)] == text) {
      break;
    }
  }
  return at;
}

bool TextIndex::insert(std::span<const std::string_view> texts, TokenId id) {
  const std::string_view text = texts[static_cast<std::size_t>(raw(id))];
  const std::uint64_t hash = hash_of(text);
  Slot& slot = slots_[slot_of(texts, text, hash)];
  if (slot.id >= 0) return false;
  slot = {static_cast<std::uint32_t>(hash), raw(id)};
  return true;
}

std::optional<TokenId> TextIndex::find(std::span<const std::string_view> texts, std::string_view text) const {
  const Slot& slot = slots_[slot_of(texts, text, hash_of(text))];
  if (slot.id < 0) return std::nullopt;
  return TokenId{slot.id};
}

}  // namespace pivot
