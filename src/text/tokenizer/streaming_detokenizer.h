// Text from tokens as they are generated (public fault B32: characters split over tokens).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "text/tokenizer/utf8.h"

namespace pivot {

class Tokenizer;

// Every piece is whole characters, and the pieces joined are byte for byte Tokenizer::decode of the same ids:
// bytes of an unfinished character are held, and each maximal invalid subpart becomes one U+FFFD. The
// Tokenizer must outlive this.
class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that this token completes: empty while a character is unfinished.
  std::string push(TokenId id);
  // The same from bytes, for callers that cut a token (stop strings).
  std::string push_bytes(std::string_view bytes);
  // The end of generation: U+FFFD where a character was left unfinished, else empty. Ready for the next text.
  std::string finish();
  std::size_t held_bytes() const { return repair_.held_bytes(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  utf8::Repair repair_;
};

}  // namespace pivot
