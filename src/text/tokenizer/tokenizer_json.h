// Reading tokenizer.json: everything in it is either taken into a TokenizerSpec or refused by name.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace pivot {

struct TokenizerSpec {
  std::vector<std::string> tokens;  // [id] -> bytes; empty where the file has no such id
  std::vector<AddedToken> added;
  std::vector<SplitPattern> splits;
  std::array<TokenId, 256> byte_tokens{};
  std::vector<BpeMerge> merges;  // in rank order
  bool ignore_merges = false;    // a word that is itself a token is not taken apart
};

// `where` names the text in messages. Errors: kInvalidData (empty, a Git LFS pointer, not JSON,
// contradictory), kUnsupported (a component that would change the ids and is not implemented, by name).
Result<TokenizerSpec> parse_tokenizer_json(std::string_view json, std::string_view where);

}  // namespace pivot
