// A small tokenizer.json made in the test, so that the logic is tested without outside data.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pivot::test {

using Merges = std::vector<std::pair<std::string, std::string>>;  // bytes, in rank order

// Bytes in the byte-level alphabet of tokenizer.json: " the" -> "Ġthe".
std::string spelled(std::string_view bytes);

// A tokenizer of 256 byte tokens (id = byte + 3), one token per merge, and a few added tokens, with
// DeepSeek's pre-tokenizer. Ids of merges follow in order from 259.
nlohmann::json tiny_tokenizer_json(const Merges& merges);
// A few English merges.
const Merges& tiny_merges();

// Byte-pair encoding of one word in the plainest way: the oracle.
std::vector<std::string> plain_bpe(std::string_view word, const Merges& merges);

}  // namespace pivot::test
