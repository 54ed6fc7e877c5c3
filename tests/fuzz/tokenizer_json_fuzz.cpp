// tokenizer.json and texts. The first byte chooses:
//   'f'  a whole file, a zero byte, a text;
//   else a split pattern, added tokens and a text, each ended by a zero byte, in an otherwise sound small
//   file.
// Whatever loads must give every text back, and a stream of its tokens must read like the whole.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/streaming_detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace {

using nlohmann::json;

// Takes what stands before the next zero byte.
std::string_view field(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return taken;
}

// As JSON text: the same for every input, so it is written once.
const std::string& sound_model() {
  static const std::string model = [] {
    json vocab = json::object();
    json merges = json::array();
    const auto spelled = [](std::string_view bytes) {
      std::string out;
      for (const char byte : bytes) {
        pivot::utf8::append(
            out, pivot::ByteLevelAlphabet::instance().spelling_of(static_cast<unsigned char>(byte)));
      }
      return out;
    };
    int id = 0;
    for (int byte = 0; byte < 256; ++byte) vocab[spelled(std::string(1, static_cast<char>(byte)))] = id++;
    for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{"a", "a"},
                                                                                      {"aa", "aa"},
                                                                                      {"a", "b"},
                                                                                      {" ", "a"},
                                                                                      {"\xE4", "\xBD"},
                                                                                      {"\xE4\xBD", "\xA0"},
                                                                                      {"1", "2"}}) {
      merges.push_back(spelled(left) + " " + spelled(right));
      vocab[spelled(left + right)] = id++;
    }
    return json{{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}.dump();
  }();
  return model;
}

// A file with this pattern and these added tokens (separated by newlines).
std::string file_with(std::string_view pattern, std::string_view added) {
  json tokens = json::array();
  int id = 300;
  while (!added.empty() && id < 330) {
    const std::size_t end = std::min(added.find('\n'), added.size());
    tokens.push_back({{"id", id}, {"content", added.substr(0, end)}, {"normalized", id % 2 == 0}});
    added.remove_prefix(std::min(end + 1, added.size()));
    ++id;
  }
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json file = {{"added_tokens", tokens},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
                     {"decoder", {{"type", "ByteLevel"}}}};
  std::string text = file.dump(-1, ' ', false, json::error_handler_t::replace);
  text.pop_back();
  return text + ",\"model\":" + sound_model() + "}";
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::string file;
  if (!rest.empty() && rest.front() == 'f') {
    rest.remove_prefix(1);
    file = field(rest);
  } else {
    const std::string_view pattern = field(rest);
    file = file_with(pattern, field(rest));
  }
  const auto tokenizer = pivot::Tokenizer::parse(file, "fuzz.json");
  if (!tokenizer) {
    PIVOT_CHECK(!tokenizer.error().message.empty());
    return 0;
  }
  // A pattern may take a hundred thousand steps at each character, so the texts are short.
  const std::string_view text = rest.substr(0, 128);
  const std::vector<pivot::TokenId> ids = tokenizer->encode(text);
  PIVOT_CHECK(tokenizer->decode(ids) == pivot::utf8::repaired(text));
  PIVOT_CHECK(tokenizer->encode(text) == ids);
  std::string streamed;
  pivot::StreamingDetokenizer stream(*tokenizer);
  for (const pivot::TokenId id : ids) {
    PIVOT_CHECK(pivot::raw(id) >= 0 && pivot::raw(id) < tokenizer->vocab_size());
    streamed += stream.push(id);
  }
  streamed += stream.finish();
  PIVOT_CHECK(streamed == pivot::utf8::repaired(text));
  return 0;
}
