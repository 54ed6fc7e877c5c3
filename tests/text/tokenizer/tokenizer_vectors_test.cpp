// The real tokenizers against published ids (test data: real/tokenizer, real/vectors).
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/test_data.h"
#include "text/tokenizer/streaming_detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot {
namespace {

using nlohmann::json;

std::string read_gzip(const std::filesystem::path& path) {  // also reads plain files
  std::string text;
  const gzFile file = gzopen(path.c_str(), "rb");
  std::array<char, 1 << 16> buffer;
  for (int got = 1; file != nullptr && got > 0;) {
    got = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()));
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (file != nullptr) gzclose(file);
  return text;
}

const Tokenizer& v4(const std::filesystem::path& folder) {
  static const Tokenizer tokenizer = *Tokenizer::load(folder);
  return tokenizer;
}

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const TokenId id : tokenizer.encode(text)) ids.push_back(raw(id));
  return ids;
}

std::vector<TokenId> token_ids(const std::vector<std::int32_t>& ids) {
  std::vector<TokenId> out;
  for (const std::int32_t id : ids) out.push_back(TokenId{id});
  return out;
}

std::string sha256(const std::string& bytes) {
  const std::filesystem::path file = test::scratch_dir() / "ids";
  std::ofstream(file, std::ios::binary) << bytes;
  std::FILE* pipe = popen(("sha256sum <" + file.string()).c_str(), "r");
  std::array<char, 65> digest{};
  const std::size_t got = pipe == nullptr ? 0 : std::fread(digest.data(), 1, 64, pipe);
  if (pipe != nullptr) pclose(pipe);
  return std::string(digest.data(), got);
}

TEST(TokenizerVectors, SmokeVectorAndSpecialIds) {
  PIVOT_NEED_DATA(folder, "real/tokenizer/v4");
  const Tokenizer& tokenizer = v4(folder);
  EXPECT_EQ(encode(tokenizer, "The capital of France is"),
            (std::vector<std::int32_t>{671, 6102, 294, 8760, 344}));
  EXPECT_EQ(tokenizer.vocab_size(), 129'280);
  const SpecialTokens& special = tokenizer.special();
  EXPECT_EQ(special.bos, TokenId{0});
  EXPECT_EQ(special.eos, TokenId{1});
  EXPECT_EQ(special.pad, TokenId{2});
  EXPECT_EQ(special.user, TokenId{128'803});
  EXPECT_EQ(special.assistant, TokenId{128'804});
  EXPECT_EQ(special.think_open, TokenId{128'821});
  EXPECT_EQ(special.think_close, TokenId{128'822});
  EXPECT_EQ(special.dsml, TokenId{128'825});
  EXPECT_EQ(special.latest_reminder, TokenId{128'828});
  int special_count = 0;
  int added_count = 0;
  for (std::int32_t id = 0; id < 129'280; ++id) {
    special_count += tokenizer.is_special(TokenId{id}) ? 1 : 0;
    added_count += tokenizer.is_added(TokenId{id}) ? 1 : 0;
    EXPECT_FALSE(tokenizer.token_bytes(TokenId{id}).empty());
  }
  EXPECT_EQ(special_count, 1230);
  EXPECT_EQ(added_count, 1283);
  EXPECT_FALSE(tokenizer.is_special(*special.think_open));
  EXPECT_EQ(tokenizer.token_id("<｜place▁holder▁no▁799｜>"), TokenId{128'799});
  EXPECT_EQ(encode(tokenizer, "<｜/table>｜DSML｜")[0], 129'265);
}

TEST(TokenizerVectors, EveryPublishedLineOfBothTokenizers) {
  PIVOT_NEED_DATA(folder, "real/tokenizer/v4");
  PIVOT_NEED_DATA(v41_file, "real/tokenizer/v41/tokenizer.json.gz");
  PIVOT_NEED_DATA(vectors, "real/vectors/tokenizer/v4_vectors.jsonl.gz");
  const Tokenizer& tokenizer = v4(folder);
  const auto v41 = Tokenizer::parse(read_gzip(v41_file), "v41");
  ASSERT_TRUE(v41) << v41.error().to_string();
  std::istringstream lines(read_gzip(vectors));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json vector = json::parse(line);
    const auto text = vector.at("s").get<std::string>();
    const auto want = vector.at("v4").get<std::vector<std::int32_t>>();
    ASSERT_EQ(encode(tokenizer, text), want) << text;
    ASSERT_EQ(encode(*v41, text), vector.value("v41", want)) << text;
    ASSERT_EQ(tokenizer.decode(token_ids(want)), text);
    StreamingDetokenizer stream(tokenizer);
    std::string streamed;
    for (const std::int32_t id : want) streamed += stream.push(TokenId{id});
    ASSERT_EQ(streamed + stream.finish(), text);
  }
  EXPECT_EQ(count, 1806);
}

TEST(TokenizerVectors, TheOfficialEncodingOutputs) {
  PIVOT_NEED_DATA(folder, "real/tokenizer/v4");
  PIVOT_NEED_DATA(ids_file, "real/vectors/tokenizer/official_encoding_outputs.v4.ids.json");
  PIVOT_NEED_DATA(outputs, "real/encoding/dsv4-official");
  const json all = json::parse(read_gzip(ids_file));
  ASSERT_EQ(all.size(), 4u);
  for (const auto& [name, ids] : all.items()) {
    EXPECT_EQ(encode(v4(folder), *read_file(outputs / name)), ids.get<std::vector<std::int32_t>>()) << name;
  }
}

TEST(TokenizerVectors, TheHarnessPrompts) {
  PIVOT_NEED_DATA(folder, "real/tokenizer/v4");
  PIVOT_NEED_DATA(harness, "real/vectors/sm120-harness/tokenizer_parity.json");
  const json file = json::parse(read_gzip(harness));
  ASSERT_EQ(file.at("rows").size(), 48u);
  for (const json& row : file.at("rows")) {
    const auto text = row.at("decoded_roundtrip").get<std::string>();
    const auto want = row.at("token_ids").get<std::vector<std::int32_t>>();
    EXPECT_EQ(encode(v4(folder), text), want) << row.at("name") << row.at("mode");
    EXPECT_EQ(v4(folder).decode(token_ids(want)), text);
  }
}

TEST(TokenizerVectors, TheLongTexts) {
  PIVOT_NEED_DATA(folder, "real/tokenizer/v4");
  PIVOT_NEED_DATA(counts_file, "real/vectors/tokenizer/haystack_token_counts.json");
  PIVOT_NEED_DATA(haystack, "real/haystack");
  const json counts = json::parse(read_gzip(counts_file));
  ASSERT_EQ(counts.size(), 4u);
  for (const auto& [name, want] : counts.items()) {
    const std::string text = *read_file(haystack / name);
    const std::vector<std::int32_t> ids = encode(v4(folder), text);
    EXPECT_EQ(ids.size(), want.at("tokens").get<std::size_t>()) << name;
    std::string bytes;  // little-endian u32
    for (const std::int32_t id : ids) {
      for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(id >> shift & 0xFF));
    }
    EXPECT_EQ(sha256(bytes), want.at("sha256_u32le").get<std::string>()) << name;
    EXPECT_EQ(v4(folder).decode(token_ids(ids)), text) << name;
  }
}

}  // namespace
}  // namespace pivot
