// The tokenizer of a checkpoint: tokenizer.json in, the ids of the `tokenizers` package out (specification
// 6).
//
// Byte-level BPE with the file's own added tokens and pre-tokenizer. Every component that the file names is
// either implemented or refused by name at load, so that a tokenizer that loads gives the reference's ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace pivot {

// Ids that the program needs by role, looked up by their text in the file; absent where the file has no such
// token. The comments give the spelling in DeepSeek-V4's tokenizer.json.
struct SpecialTokens {
  std::optional<TokenId> bos;              // <｜begin▁of▁sentence｜>
  std::optional<TokenId> eos;              // <｜end▁of▁sentence｜>
  std::optional<TokenId> pad;              // <｜▁pad▁｜>
  std::optional<TokenId> user;             // <｜User｜>
  std::optional<TokenId> assistant;        // <｜Assistant｜>
  std::optional<TokenId> think_open;       // <think>
  std::optional<TokenId> think_close;      // </think>
  std::optional<TokenId> dsml;             // ｜DSML｜
  std::optional<TokenId> latest_reminder;  // <｜latest_reminder｜>
};

// Immutable after loading: any number of threads may call the const members of one Tokenizer at the same
// time.
class Tokenizer {
 public:
  // Reads a tokenizer.json, or the one in a checkpoint folder. Errors: kNotFound (no such file), kInvalidData
  // (empty, a Git LFS pointer, malformed or contradictory), kUnsupported (a component named in the message).
  static Result<Tokenizer> load(const std::filesystem::path& folder_or_file);
  // The same from text in memory; `where` names it in messages.
  static Result<Tokenizer> parse(std::string_view json, std::string_view where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of a text. Added tokens ("<｜User｜>", "<think>", ...) are recognised wherever they are spelt out,
  // before anything else; no BOS or EOS is added. Bytes that are not UTF-8 are read as U+FFFD, one for each
  // maximal invalid subpart, as Python's bytes.decode(errors="replace") does. Time is O(n log n) for any
  // input.
  std::vector<TokenId> encode(std::string_view utf8) const;

  // The text of ids: bytes of all tokens joined, then invalid UTF-8 replaced by U+FFFD as above. Ids that do
  // not exist give nothing. skip_special leaves out the tokens flagged special (<think>, <｜User｜> and
  // ｜DSML｜ are not).
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  // The bytes one token stands for, perhaps half a character; empty where the id does not exist. Valid as
  // long as the Tokenizer lives (moving it does not invalidate).
  std::string_view token_bytes(TokenId id) const;

  // The id of the token that is exactly this text: an added token first, else a vocabulary entry.
  std::optional<TokenId> token_id(std::string_view text) const;

  // True where the file's added_tokens entry says special: true.
  bool is_special(TokenId id) const;
  // True where the id is one of the file's added_tokens.
  bool is_added(TokenId id) const;

  // Highest id + 1, added tokens included: 129,280 for DeepSeek-V4.
  std::int64_t vocab_size() const;
  const SpecialTokens& special() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace pivot
