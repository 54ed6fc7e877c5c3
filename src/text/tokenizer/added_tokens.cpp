#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace pivot {

LiteralMatcher::LiteralMatcher(std::vector<const AddedToken*> tokens) : sorted_(std::move(tokens)) {
  std::sort(sorted_.begin(), sorted_.end(),
            [](const AddedToken* a, const AddedToken* b) { return a->content < b->content; });
  std::array<std::uint32_t, 256> count{};
  for (const AddedToken* token : sorted_) ++count[static_cast<unsigned char>(token->content.front())];
  int first_bytes = 0;
  for (std::size_t b = 0; b < count.size(); ++b) {
    first_of_[b + 1] = first_of_[b] + count[b];
    if (count[b] > 0) {
      ++first_bytes;
      only_first_byte_ = static_cast<int>(b);
    }
  }
  if (first_bytes != 1) only_first_byte_ = -1;
}

LiteralMatcher::Match LiteralMatcher::match_at(std::string_view text, std::size_t at) const {
  // The tokens that agree with the text so far are one range of the sorted list; each further byte narrows
  // it. A token that ends here sorts first in the range.
  const auto byte = static_cast<unsigned char>(text[at]);
  auto low = sorted_.begin() + first_of_[byte];
  auto high = sorted_.begin() + first_of_[byte + 1u];
  Match longest{at, at, {}};
  for (std::size_t depth = 1; low != high; ++depth) {
    if ((*low)->content.size() == depth) {
      longest.end = at + depth;
      longest.id = (*low)->id;
      ++low;
    }
    if (at + depth == text.size()) break;
    const auto next = static_cast<unsigned char>(text[at + depth]);
    const auto byte_at_depth = [depth](const AddedToken* token) {
      return static_cast<unsigned char>(token->content[depth]);
    };
    low = std::partition_point(low, high, [&](const AddedToken* t) { return byte_at_depth(t) < next; });
    high = std::partition_point(low, high, [&](const AddedToken* t) { return byte_at_depth(t) == next; });
  }
  return longest;
}

LiteralMatcher::Match LiteralMatcher::find(std::string_view text, std::size_t from) const {
  if (sorted_.empty()) return {text.size(), text.size(), {}};
  for (std::size_t at = from; at < text.size(); ++at) {
    if (only_first_byte_ >= 0) {
      at = text.find(static_cast<char>(only_first_byte_), at);
      if (at == std::string_view::npos) break;
    } else {
      const auto byte = static_cast<unsigned char>(text[at]);
      if (first_of_[byte] == first_of_[byte + 1u]) continue;
    }
    const Match match = match_at(text, at);
    if (match.end > match.begin) return match;
  }
  return {text.size(), text.size(), {}};
}

AddedTokenSplitter::AddedTokenSplitter(const std::vector<AddedToken>& tokens) {
  std::vector<const AddedToken*> raw;
  std::vector<const AddedToken*> normalized;
  for (const AddedToken& token : tokens) (token.normalized ? normalized : raw).push_back(&token);
  raw_ = LiteralMatcher(std::move(raw));
  normalized_ = LiteralMatcher(std::move(normalized));
}

}  // namespace pivot
