// Added tokens: texts such as "<｜User｜>" or "<think>" that are one token wherever they are spelt out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace pivot {

struct AddedToken {
  std::string content;  // not empty, valid UTF-8
  TokenId id{};
  bool special = false;
  bool normalized = false;
};

// Finds the leftmost match, the longest at its position, of a set of texts.
class LiteralMatcher {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;  // == begin: none
    TokenId id{};
  };

  LiteralMatcher() = default;
  // The tokens must outlive the matcher. Two tokens must not share a content.
  explicit LiteralMatcher(std::vector<const AddedToken*> tokens);
  Match find(std::string_view text, std::size_t from) const;

 private:
  Match match_at(std::string_view text, std::size_t at) const;

  std::vector<const AddedToken*> sorted_;      // by content
  std::array<std::uint32_t, 257> first_of_{};  // sorted_[first_of_[b] .. first_of_[b + 1]) start with byte b
  int only_first_byte_ = -1;                   // where all share one: allows memchr
};

// Splits a text around added tokens in the reference's order: tokens with normalized: false are taken out of
// the whole text first, those with normalized: true out of what is left. So "<｜/table>｜DSML｜" is 129265
// and then "DSML｜", and a token of the first kind wins even over one of the second kind that starts before
// it.
class AddedTokenSplitter {
 public:
  AddedTokenSplitter() = default;
  explicit AddedTokenSplitter(const std::vector<AddedToken>& tokens);

  // Calls on_text(std::string_view) for each stretch of ordinary text (never empty) and on_token(TokenId), in
  // order.
  template <class OnText, class OnToken>
  void split(std::string_view text, OnText&& on_text, OnToken&& on_token) const {
    split_by(raw_, text, on_token,
             [&](std::string_view rest) { split_by(normalized_, rest, on_token, on_text); });
  }

 private:
  template <class OnText, class OnToken>
  static void split_by(const LiteralMatcher& matcher, std::string_view text, OnToken&& on_token,
                       OnText&& on_text) {
    std::size_t at = 0;
    while (at < text.size()) {
      const LiteralMatcher::Match match = matcher.find(text, at);
      const bool found = match.end > match.begin;
      const std::size_t stop = found ? match.begin : text.size();
      if (stop > at) on_text(text.substr(at, stop - at));
      if (found) on_token(match.id);
      at = found ? match.end : text.size();
    }
  }

  LiteralMatcher raw_;
  LiteralMatcher normalized_;
};

}  // namespace pivot
