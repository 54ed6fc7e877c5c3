#include "text/tokenizer/streaming_detokenizer.h"

#include "text/tokenizer/tokenizer.h"

namespace pivot {

std::string StreamingDetokenizer::push(TokenId id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  return push_bytes(tokenizer_->token_bytes(id));
}

std::string StreamingDetokenizer::push_bytes(std::string_view bytes) {
  std::string piece;
  repair_.push(bytes, piece);
  return piece;
}

std::string StreamingDetokenizer::finish() {
  std::string piece;
  repair_.finish(piece);
  return piece;
}

}  // namespace pivot
