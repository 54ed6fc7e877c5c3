#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/embedded_model.h"
#include "support/test_data.h"
#include "text/tokenizer/tiny_tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace pivot {
namespace {

using nlohmann::json;

Tokenizer tiny() { return *Tokenizer::parse(test::tiny_tokenizer_json(test::tiny_merges()).dump(), "tiny"); }

// The texts of the ids, so that expectations are readable.
std::vector<std::string> texts_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::vector<std::string> texts;
  for (const TokenId id : ids) texts.emplace_back(tokenizer.token_bytes(id));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Tokenizer, EncodesWordsByMerges) {
  const Tokenizer tokenizer = tiny();
  EXPECT_EQ(texts_of(tokenizer, tokenizer.encode("the hello")), (Texts{"the", " ", "hello"}));
  EXPECT_EQ(texts_of(tokenizer, tokenizer.encode(" the  tin")), (Texts{" the", " ", " t", "in"}));
  EXPECT_EQ(texts_of(tokenizer, tokenizer.encode("1234\n\n")), (Texts{"123", "4", "\n\n"}));
  EXPECT_EQ(texts_of(tokenizer, tokenizer.encode("你")), (Texts{"你"}));
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.encode(std::string_view("\0", 1)), std::vector<TokenId>{TokenId{3}});
}

TEST(Tokenizer, RecognisesAddedTokensAnywhere) {
  const Tokenizer tokenizer = tiny();
  EXPECT_EQ(texts_of(tokenizer, tokenizer.encode("in<think>in</think>")),
            (Texts{"in", "<think>", "in", "</think>"}));
  EXPECT_EQ(texts_of(tokenizer, tokenizer.encode("<think>ing")), (Texts{"<think>ing"}));
  EXPECT_EQ(texts_of(tokenizer, tokenizer.encode("<｜begin▁of▁sentence｜>in")),
            (Texts{"<｜begin▁of▁sentence｜>", "in"}));
  EXPECT_EQ(tokenizer.encode("<｜/table>｜DSML｜")[0], tokenizer.token_id("<｜/table>｜"));
  EXPECT_EQ(tokenizer.encode("<｜/table>｜｜DSML｜"),
            (std::vector<TokenId>{*tokenizer.token_id("<｜/table>｜"), *tokenizer.special().dsml}));
}

TEST(Tokenizer, AnswersAboutItsTokens) {
  const Tokenizer tokenizer = tiny();
  EXPECT_EQ(tokenizer.special().bos, TokenId{0});
  EXPECT_EQ(tokenizer.special().eos, TokenId{1});
  EXPECT_FALSE(tokenizer.special().pad);
  EXPECT_FALSE(tokenizer.special().user);
  EXPECT_TRUE(tokenizer.is_special(TokenId{0}));
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.special().think_open));
  EXPECT_TRUE(tokenizer.is_added(*tokenizer.special().think_open));
  EXPECT_FALSE(tokenizer.is_added(TokenId{3}));
  EXPECT_EQ(tokenizer.vocab_size(), 3 + 256 + 15 + 5);
  EXPECT_EQ(tokenizer.token_id(" the"), TokenId{3 + 256 + 2});
  EXPECT_EQ(tokenizer.token_id("\xFF"), TokenId{3 + 0xFF});
  EXPECT_FALSE(tokenizer.token_id("absent"));
  EXPECT_FALSE(tokenizer.token_id(""));
  for (const int id : {-1, -1'000'000'000, 2, 279, 1'000'000'000}) {  // 2 is a gap
    EXPECT_EQ(tokenizer.token_bytes(TokenId{id}), "") << id;
    EXPECT_FALSE(tokenizer.is_special(TokenId{id}));
    EXPECT_FALSE(tokenizer.is_added(TokenId{id}));
  }
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{TokenId{-5}, TokenId{3 + 'x'}, TokenId{99'999}}), "x");
}

TEST(Tokenizer, ViewsOutliveAMove) {
  Tokenizer first = tiny();
  const std::string_view bytes = first.token_bytes(TokenId{261});
  Tokenizer second = std::move(first);
  first = tiny();
  EXPECT_EQ(bytes, " the");
  EXPECT_EQ(second.token_bytes(TokenId{261}).data(), bytes.data());
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  const Tokenizer tokenizer = tiny();
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (std::size_t i = 0, n = random() % 30; i < n; ++i) {
      const char32_t limit = std::array<char32_t, 4>{0x80, 0x300, 0x10000, 0x110000}[random() % 4];
      const auto c = static_cast<char32_t>(random() % limit);
      if (c < 0xD800 || c > 0xDFFF) utf8::append(text, c);
      if (random() % 10 == 0) text += "<think>";
    }
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8AreReadAsReplacementCharacters) {
  const Tokenizer tokenizer = tiny();
  for (const std::string bytes :
       {"\xFF", "a\xC3", "\xED\xA0\x80", "the\xF0\x9F\x98 t", "<think>\x80</think>"}) {
    EXPECT_EQ(tokenizer.encode(bytes), tokenizer.encode(utf8::repaired(bytes)));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), utf8::repaired(bytes));
  }
}

TEST(Tokenizer, ThreadsMayShareOne) {
  const Tokenizer tokenizer = tiny();
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> want;
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (std::size_t n = random() % 200; n > 0; --n) text += "the in12 \n<think>"[random() % 17];
    want.push_back(tokenizer.encode(text));
    texts.push_back(std::move(text));
  }
  std::array<int, 4> equal{};
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i) count += tokenizer.encode(texts[i]) == want[i] ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : equal) EXPECT_EQ(count, 300);
}

TEST(Tokenizer, IgnoreMergesTakesAWordThatIsAToken) {
  // "abc" is in the vocabulary but no merge of "ab" with "c" comes before ("b", "c").
  const test::Merges merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  json file = test::tiny_tokenizer_json(merges);
  EXPECT_EQ(Tokenizer::parse(file.dump(), "tiny")->encode("abc").size(), 2u);
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(Tokenizer::parse(file.dump(), "tiny")->encode("abc").size(), 1u);
}

TEST(Tokenizer, ReadsMergesAsPairsAndOtherPatterns) {
  json file = test::tiny_tokenizer_json({});
  const Tokenizer plain = tiny();
  json pairs = json::array();
  for (const auto& [left, right] : test::tiny_merges())
    pairs.push_back({test::spelled(left), test::spelled(right)});
  json with_pairs = test::tiny_tokenizer_json(test::tiny_merges());
  with_pairs["model"]["merges"] = pairs;
  EXPECT_EQ(Tokenizer::parse(with_pairs.dump(), "tiny")->encode("the hello 123"),
            plain.encode("the hello 123"));
  json with_space_cut = test::tiny_tokenizer_json(test::tiny_merges());
  with_space_cut["pre_tokenizer"]["pretokenizers"] = {
      {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Isolated"}, {"invert", false}},
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}};
  const Tokenizer other = *Tokenizer::parse(with_space_cut.dump(), "tiny");
  EXPECT_EQ(texts_of(other, other.encode("a the")), (Texts{"a", " ", "the"}));
}

// ---- what is refused ----

struct Refusal {
  std::string path;  // JSON pointer; "" replaces the whole file
  json value;
  ErrorCode code;
  std::string names;  // what the message must mention
};

void expect_refused(const json& file, const Refusal& refusal) {
  const auto tokenizer = Tokenizer::parse(file.dump(), "some/tokenizer.json");
  ASSERT_FALSE(tokenizer) << refusal.path << " = " << refusal.value.dump();
  const std::string sentence = tokenizer.error().to_string();
  EXPECT_EQ(tokenizer.error().code, refusal.code) << sentence;
  EXPECT_NE(sentence.find(refusal.names), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("some/tokenizer.json"), std::string::npos) << sentence;
}

TEST(Tokenizer, RefusesByNameWhatItDoesNotImplement) {
  const auto kNo = ErrorCode::kUnsupported;
  const json lowercase = {{"type", "Lowercase"}};
  const std::vector<Refusal> refusals = {
      {"/normalizer", {{"type", "NFC"}}, kNo, "NFC"},
      {"/normalizer/normalizers", json::array({lowercase}), kNo, "Lowercase"},
      {"/pre_tokenizer", nullptr, kNo, "pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, kNo, "Metaspace"},
      {"/pre_tokenizer/pretokenizers/0", {{"type", "Whitespace"}}, kNo, "Whitespace"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", kNo, "Removed"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, kNo, "invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a&&b]", kNo, "&&"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(", kNo, "cannot be compiled"},
      {"/pre_tokenizer/pretokenizers/3/add_prefix_space", true, kNo, "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers/3/use_regex", true, kNo, "use_regex"},
      {"/pre_tokenizer/pretokenizers/3", {{"type", "ByteLevel"}}, kNo, "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers", json::array(), kNo, "ByteLevel"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, kNo, "TemplateProcessing"},
      {"/decoder", {{"type", "WordPiece"}}, kNo, "WordPiece"},
      {"/decoder", nullptr, kNo, "decoder"},
      {"/model/type", "Unigram", kNo, "Unigram"},
      {"/model/dropout", 0.1, kNo, "dropout"},
      {"/model/byte_fallback", true, kNo, "byte_fallback"},
      {"/model/continuing_subword_prefix", "##", kNo, "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", kNo, "end_of_word_suffix"},
      {"/added_tokens/2/lstrip", true, kNo, "lstrip"},
      {"/added_tokens/2/rstrip", true, kNo, "rstrip"},
      {"/added_tokens/2/single_word", true, kNo, "single_word"},
  };
  for (const Refusal& refusal : refusals) {
    json file = test::tiny_tokenizer_json(test::tiny_merges());
    file[json::json_pointer(refusal.path)] = refusal.value;
    expect_refused(file, refusal);
  }
  json nested = test::tiny_tokenizer_json(test::tiny_merges());
  for (int depth = 0; depth < 20; ++depth) {
    const json inner = nested["pre_tokenizer"];
    nested["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array({inner})}};
  }
  expect_refused(nested, {"", "nested", kNo, "deep"});
  json incomplete = test::tiny_tokenizer_json({});
  incomplete["model"]["vocab"].erase(test::spelled("\n"));
  expect_refused(incomplete, {"", "no newline", kNo, "0x0a"});
}

TEST(Tokenizer, RefusesContradictions) {
  const auto kBad = ErrorCode::kInvalidData;
  const std::vector<Refusal> refusals = {
      {"/model", nullptr, kBad, "\"model\""},
      {"/model/vocab", json::array(), kBad, "\"vocab\" must be an object and is an array"},
      {"/model/vocab/Ġ", -1, kBad, "Ġ"},
      {"/model/vocab/Ġ", 1e30, kBad, "Ġ"},
      {"/model/vocab/Ġ", 5'000'000'000, kBad, "Ġ"},
      {"/model/vocab/Ġ", "7", kBad, "Ġ"},
      {"/model/vocab/Ġ", 7, kBad, "id 7 twice"},
      {"/model/merges", nullptr, kBad, "merges"},
      {"/model/merges/0", "ab", kBad, "merge 0"},
      {"/model/merges/0", "a b c", kBad, "merge 0"},
      {"/model/merges/0", {"a", "b", "c"}, kBad, "merge 0"},
      {"/model/merges/0", "a zz", kBad, "\"zz\""},
      {"/model/merges/0", "x y", kBad, "\"xy\""},
      {"/added_tokens", "x", kBad, "added_tokens"},
      {"/added_tokens/2/content", "", kBad, "id 274"},
      {"/added_tokens/2/content", nullptr, kBad, "content"},
      {"/added_tokens/2/id", -4, kBad, "-4"},
      {"/added_tokens/2/id", 1e9, kBad, "id"},
      {"/added_tokens/2/id", 275, kBad, "twice"},
      {"/added_tokens/2/content", "</think>", kBad, "twice"},
      {"/added_tokens/2/content", "the", kBad, "contradicts"},
      {"/added_tokens/2/id", 100, kBad, "contradicts"},
      {"/added_tokens/2", {{"id", 3 + ' '}, {"content", "Ġ"}}, kBad, "other bytes"},
      {"/added_tokens/2/special", "yes", kBad, "\"special\" must be a boolean"},
      {"/normalizer", 5, kBad, "normalizer"},
      {"/pre_tokenizer/type", nullptr, kBad, "type"},
      {"/pre_tokenizer/pretokenizers/1/pattern", json::object(), kBad, "Regex"},
      {"/pre_tokenizer/pretokenizers/1/pattern/Regex", "", kBad, "empty"},
  };
  for (const Refusal& refusal : refusals) {
    json file = test::tiny_tokenizer_json(test::tiny_merges());
    file[json::json_pointer(refusal.path)] = refusal.value;
    expect_refused(file, refusal);
  }
  std::string twice = test::tiny_tokenizer_json(test::tiny_merges()).dump();
  twice.replace(twice.find("\"vocab\":{"), 9, "\"vocab\":{\"!\":500,");
  const auto tokenizer = Tokenizer::parse(twice, "t");
  ASSERT_FALSE(tokenizer);
  EXPECT_NE(tokenizer.error().to_string().find("\"!\" twice"), std::string::npos)
      << tokenizer.error().to_string();
}

TEST(Tokenizer, SaysWhatIsWrongWithAFileThatIsNone) {
  const std::filesystem::path folder = test::scratch_dir();
  const auto sentence = [&](const std::filesystem::path& path, ErrorCode code) {
    const auto tokenizer = Tokenizer::load(path);
    if (tokenizer) return std::string("LOADED");
    EXPECT_EQ(tokenizer.error().code, code);
    return tokenizer.error().to_string();
  };
  const auto write = [&](std::string_view contents) {
    std::ofstream(folder / "tokenizer.json", std::ios::binary) << contents;
  };
  EXPECT_NE(sentence(folder, ErrorCode::kNotFound).find("tokenizer.json"), std::string::npos);
  EXPECT_NE(sentence(folder / "absent.json", ErrorCode::kNotFound).find("absent.json"), std::string::npos);
  write("");
  EXPECT_NE(sentence(folder, ErrorCode::kInvalidData).find("is empty (0 bytes)"), std::string::npos);
  write("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 6367146\n");
  EXPECT_NE(sentence(folder, ErrorCode::kInvalidData).find("Git LFS pointer"), std::string::npos);
  write(std::string(4096, '\0'));
  EXPECT_NE(sentence(folder, ErrorCode::kInvalidData).find("not valid JSON"), std::string::npos);
  const std::string whole = test::tiny_tokenizer_json(test::tiny_merges()).dump();
  write(std::string_view(whole).substr(0, whole.size() / 2));
  EXPECT_NE(sentence(folder, ErrorCode::kInvalidData).find("not valid JSON"), std::string::npos);
  write("[1]");
  EXPECT_NE(sentence(folder, ErrorCode::kInvalidData).find("an array"), std::string::npos);
  write("{}");
  EXPECT_NE(sentence(folder, ErrorCode::kUnsupported).find("pre_tokenizer"), std::string::npos);
  write(whole);
  EXPECT_EQ(sentence(folder, ErrorCode::kInternal), "LOADED");
  EXPECT_EQ(sentence(folder / "tokenizer.json", ErrorCode::kInternal), "LOADED");
}

// The embedded model's own file: a real one, of 4,096 rows.
TEST(Tokenizer, ReadsTheEmbeddedModels) {
  const auto tokenizer = Tokenizer::load(test::embedded_model_dir());
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  EXPECT_EQ(tokenizer->special().bos, TokenId{0});
  EXPECT_EQ(tokenizer->special().user, TokenId{4078});
  EXPECT_EQ(tokenizer->special().think_close, TokenId{4081});
  const std::string text =
      "<｜begin▁of▁sentence｜><｜User｜>In the beginning God created 7 heavens.\n\n<｜Assistant｜></think>";
  const std::vector<TokenId> ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_LT(ids.size(), text.size() / 3);
  EXPECT_EQ(tokenizer->decode(ids, true), text.substr(std::string_view("<｜begin▁of▁sentence｜>").size()));
}

}  // namespace
}  // namespace pivot
