// The text that facts are hidden in, as a stream of tokens that goes round.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace pivot {
class Tokenizer;
}

namespace pivot::recall {

class Haystack {
 public:
  // `text` is one verse or sentence a line. Errors: kInvalidData for bytes that are not UTF-8 (with the
  // offset), kInvalidArgument for a text of fewer than kFewestTokens tokens or kFewestUnits lines.
  static Result<Haystack> create(std::string_view text, const Tokenizer& tokenizer);
  static constexpr std::int64_t kFewestTokens = 512;
  static constexpr std::int64_t kFewestUnits = 8;

  std::int64_t tokens() const { return static_cast<std::int64_t>(ids_.size()); }
  std::int64_t units() const { return static_cast<std::int64_t>(starts_.size()); }

  // `count` tokens of which the last one ends a unit; the first unit may be cut at its beginning. `unit`
  // counts modulo units(): the run ends before it. The text repeats where it is shorter than count.
  std::vector<TokenId> ending_before(std::int64_t unit, std::int64_t count) const;
  // `count` tokens from the start of `unit` on; the last unit may be cut at its end.
  std::vector<TokenId> starting_at(std::int64_t unit, std::int64_t count) const;
  // First token of a unit within the stream.
  std::int64_t unit_start(std::int64_t unit) const;

 private:
  std::vector<TokenId> ids_;
  std::vector<std::int64_t> starts_;
};

// Offset of the first byte that is not part of well-formed UTF-8; npos where all is well.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace pivot::recall
