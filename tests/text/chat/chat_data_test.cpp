// The official vectors and the further cases made with the official encoder and parser, byte by byte.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "sha256.h"
#include "support/test_data.h"
#include "text/chat/completion_parser.h"
#include "text/chat/encode.h"

namespace pivot {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  auto text = read_file(path);
  EXPECT_TRUE(text) << path;
  return text.value_or("");
}

TEST(OfficialVectors, AreReproducedByteForByte) {
  PIVOT_NEED_DATA(folder, "real/encoding/dsv4-official");
  const std::string prefixes[] = {"9b366d9d", "ca66b01a", "b3b1cd87", "60e16438"};
  for (int i = 1; i <= 4; ++i) {
    const std::string expected = read(folder / fmt::format("test_output_{}.txt", i));
    ASSERT_EQ(test::sha256(expected).substr(0, 8), prefixes[i - 1]) << "the vector itself";
    ChatOptions options;
    options.thinking = i == 4 ? ThinkingMode::kChat : ThinkingMode::kThinking;
    const auto prompt = encode_chat(read(folder / fmt::format("test_input_{}.json", i)), options);
    ASSERT_TRUE(prompt) << prompt.error().to_string();
    EXPECT_EQ(*prompt, expected) << "vector " << i;
  }
}

TEST(FurtherVectors, AreReproducedByteForByte) {
  PIVOT_NEED_DATA(file, "real/encoding/extra/encode.json");
  const Json cases = Json::parse(read(file));
  ASSERT_EQ(cases.size(), 90u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Json& item = cases[i];
    ChatOptions options;
    options.thinking = item["thinking_mode"] == "chat" ? ThinkingMode::kChat : ThinkingMode::kThinking;
    options.drop_thinking = item["drop_thinking"].get<bool>();
    if (item["reasoning_effort"].is_string()) {
      options.effort = parse_reasoning_effort(item["reasoning_effort"].get<std::string>()).value();
    }
    const auto prompt = encode_chat(item["messages"].dump(), options);
    ASSERT_TRUE(prompt) << prompt.error().to_string();
    EXPECT_EQ(*prompt, item["prompt"].get<std::string>()) << "case " << i;
  }
}

TEST(ParseVectors, StrictAndStreamingGiveTheOfficialResult) {
  PIVOT_NEED_DATA(file, "real/encoding/extra/parse.json");
  const Json cases = Json::parse(read(file));
  ASSERT_EQ(cases.size(), 60u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto text = cases[i]["completion"].get<std::string>();
    const Json& expected = cases[i]["parsed"];
    const ThinkingMode mode =
        cases[i]["thinking_mode"] == "chat" ? ThinkingMode::kChat : ThinkingMode::kThinking;
    const auto strict = parse_completion(text, mode);
    ASSERT_TRUE(strict) << "case " << i << ": " << strict.error().to_string();
    EXPECT_EQ(strict->reasoning, expected["reasoning_content"].get<std::string>()) << "case " << i;
    EXPECT_EQ(strict->content, expected["content"].get<std::string>()) << "case " << i;
    ASSERT_EQ(strict->tool_calls.size(), expected["tool_calls"].size()) << "case " << i;
    for (std::size_t call = 0; call < strict->tool_calls.size(); ++call) {
      const Json& function = expected["tool_calls"][call]["function"];
      EXPECT_EQ(strict->tool_calls[call].name, function["name"].get<std::string>()) << "case " << i;
      EXPECT_EQ(strict->tool_calls[call].arguments, function["arguments"].get<std::string>()) << "case " << i;
    }
    CompletionParser parser(mode);
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      parser.reset();
      parser.feed(text.substr(0, cut));
      parser.feed(text.substr(cut));
      parser.finish();
      ASSERT_EQ(parser.result(), *strict) << "case " << i << " cut at byte " << cut;
    }
    for (const std::size_t size : {1, 2, 3, 5, 7, 11, 64}) {
      parser.reset();
      for (std::size_t at = 0; at < text.size(); at += size) parser.feed(text.substr(at, size));
      parser.finish();
      ASSERT_EQ(parser.result(), *strict) << "case " << i << " in pieces of " << size;
    }
  }
}

}  // namespace
}  // namespace pivot
