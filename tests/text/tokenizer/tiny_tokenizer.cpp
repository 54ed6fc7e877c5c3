#include "text/tokenizer/tiny_tokenizer.h"

#include <algorithm>

#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/deepseek_splitter.h"
#include "text/tokenizer/utf8.h"

namespace pivot::test {

std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) {
    utf8::append(out, ByteLevelAlphabet::instance().spelling_of(static_cast<unsigned char>(byte)));
  }
  return out;
}

const Merges& tiny_merges() {
  static const Merges merges = {{"h", "e"},   {"t", "he"},      {" ", "the"},        {"i", "n"},
                                {" ", "t"},   {"\n", "\n"},     {"1", "2"},          {"12", "3"},
                                {"l", "l"},   {"he", "ll"},     {"hell", "o"},       {"a", "a"},
                                {"aa", "aa"}, {"\xE4", "\xBD"}, {"\xE4\xBD", "\xA0"}};
  return merges;
}

nlohmann::json tiny_tokenizer_json(const Merges& merges) {
  using nlohmann::json;
  json vocab = json::object();
  json merge_list = json::array();
  int next_id = 3;
  for (int byte = 0; byte < 256; ++byte) vocab[spelled(std::string(1, static_cast<char>(byte)))] = next_id++;
  for (const auto& [left, right] : merges) {
    merge_list.push_back(spelled(left) + " " + spelled(right));
    if (!vocab.contains(spelled(left + right))) vocab[spelled(left + right)] = next_id++;
  }
  json added = json::array();
  const auto add = [&](int id, std::string_view content, bool special, bool normalized) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", normalized},
                     {"special", special}});
  };
  add(0, "<｜begin▁of▁sentence｜>", true, false);
  add(1, "<｜end▁of▁sentence｜>", true, false);
  add(next_id++, "<think>", false, true);
  add(next_id++, "</think>", false, true);
  add(next_id++, "<think>ing", false, true);
  add(next_id++, "<｜/table>｜", true, false);
  add(next_id++, "｜DSML｜", false, true);
  json splits = json::array();
  for (const std::string_view pattern : kDeepseekPatterns) {
    splits.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  splits.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", splits}}},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", merge_list}}}};
}

std::vector<std::string> plain_bpe(std::string_view word, const Merges& merges) {
  std::vector<std::string> parts;
  for (const char byte : word) parts.emplace_back(1, byte);
  while (true) {
    std::size_t best_rank = merges.size();
    std::size_t best_at = 0;
    for (std::size_t at = 0; at + 1 < parts.size(); ++at) {
      const auto found = std::find(merges.rbegin(), merges.rend(), std::pair(parts[at], parts[at + 1]));
      if (found == merges.rend()) continue;
      const auto rank = static_cast<std::size_t>(merges.rend() - found - 1);
      if (rank < best_rank) {
        best_rank = rank;
        best_at = at;
      }
    }
    if (best_rank == merges.size()) return parts;
    parts[best_at] += parts[best_at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

}  // namespace pivot::test
