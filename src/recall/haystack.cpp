#include "recall/haystack.h"

#include <string>

#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    const unsigned lead = byte(i);
    // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
    unsigned length = 1, low = 0x80, high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf)
      length = 2;
    else if (lead >= 0xe0 && lead <= 0xef)
      length = 3, low = lead == 0xe0 ? 0xa0 : 0x80, high = lead == 0xed ? 0x9f : 0xbf;
    else if (lead >= 0xf0 && lead <= 0xf4)
      length = 4, low = lead == 0xf0 ? 0x90 : 0x80, high = lead == 0xf4 ? 0x8f : 0xbf;
    else if (lead >= 0x80)
      return i;
    for (unsigned k = 1; k < length; ++k) {
      const unsigned next = byte(i + k);
      if (next < (k == 1 ? low : 0x80u) || next > (k == 1 ? high : 0xbfu)) return i;
    }
    i += length;
  }
  return std::string_view::npos;
}

Result<Haystack> Haystack::create(std::string_view text, const Tokenizer& tokenizer) {
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    return fail(ErrorCode::kInvalidData,
                "the text is not UTF-8: byte {} (0x{:02x}) does not belong there; convert it first", bad,
                static_cast<unsigned>(static_cast<unsigned char>(text[bad])));
  Haystack haystack;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    haystack.starts_.push_back(haystack.tokens());
    const std::vector<TokenId> ids = tokenizer.encode(fmt::format(" {}", line));
    haystack.ids_.insert(haystack.ids_.end(), ids.begin(), ids.end());
  }
  if (haystack.tokens() < kFewestTokens || haystack.units() < kFewestUnits)
    return fail(ErrorCode::kInvalidArgument,
                "the text has {} tokens in {} lines; at least {} tokens in {} lines are wanted (one sentence "
                "or verse a line)",
                haystack.tokens(), haystack.units(), kFewestTokens, kFewestUnits);
  return haystack;
}

std::int64_t Haystack::unit_start(std::int64_t unit) const {
  return starts_[static_cast<std::size_t>(unit % units())];
}

std::vector<TokenId> Haystack::ending_before(std::int64_t unit, std::int64_t count) const {
  const std::int64_t end = unit_start(unit);
  std::vector<TokenId> run;
  for (std::int64_t i = end - count; i < end; ++i)
    run.push_back(ids_[static_cast<std::size_t>((i % tokens() + tokens()) % tokens())]);
  return run;
}

std::vector<TokenId> Haystack::starting_at(std::int64_t unit, std::int64_t count) const {
  const std::int64_t begin = unit_start(unit);
  std::vector<TokenId> run;
  for (std::int64_t i = begin; i < begin + count; ++i)
    run.push_back(ids_[static_cast<std::size_t>(i % tokens())]);
  return run;
}

}  // namespace pivot::recall
