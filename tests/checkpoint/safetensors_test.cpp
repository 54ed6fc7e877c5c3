// The container: strict headers, and files that are complete or absent.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>

#include "base/file.h"
#include "checkpoint/safetensors_writer.h"
#include "support/test_data.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

// A whole file in memory: length field, header, `data_bytes` zero bytes.
std::vector<std::byte> file_of(std::string_view header, std::size_t data_bytes) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  std::memcpy(file.data() + 8, header.data(), header.size());
  return file;
}

std::string error_of(std::span<const std::byte> file) {
  const auto table = read_table(file, "f.safetensors");
  EXPECT_FALSE(table.has_value());
  if (table) return "";
  EXPECT_EQ(table.error().code, ErrorCode::kInvalidData);
  return table.error().to_string();
}

void expect_mentions(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

TEST(ReadTable, FindsTensorsByName) {
  const auto file = file_of(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},)"
      R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"s":{"shape":[],"data_offsets":[28,32],"dtype":"F32"},)"
      R"("z":{"dtype":"I64","shape":[0,5],"data_offsets":[32,32]}}   )",
      32);
  const auto table = read_table(file, "f.safetensors");
  ASSERT_TRUE(table.has_value()) << table.error().to_string();
  EXPECT_EQ(table->size(), 4u);
  const TensorInfo* b = table->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kBF16);
  EXPECT_EQ(b->shape, (Shape{2, 3}));
  EXPECT_EQ(b->begin, 16u);
  EXPECT_EQ(b->bytes(), 12u);
  EXPECT_EQ(table->find("c"), nullptr);
  EXPECT_EQ(table->shards()[0].data_bytes, 32u);
  EXPECT_EQ(table->shards()[0].data_begin, file.size() - 32);
  ASSERT_EQ(table->shards()[0].metadata.size(), 1u);
  EXPECT_EQ(table->shards()[0].metadata[0].second, "pt");
}

// The file of fault B24: "b" is cut.
TEST(ReadTable, TruncationIsToldWithExpectedAndFoundSizes) {
  const char* header =
      R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[1024],"data_offsets":[16,2064]}})";
  EXPECT_TRUE(read_table(file_of(header, 2064), "f").has_value());
  expect_mentions(error_of(file_of(header, 116)),
                  {"f.safetensors", "tensor \"b\"", "needs 2048 bytes", "holds 100", "1948 bytes short"});
  expect_mentions(error_of(file_of(header, 0)), {"tensor \"a\"", "holds 0 of them (1 more"});
  expect_mentions(error_of(file_of(header, 2070)), {"6 bytes follow the last tensor"});
}

TEST(ReadTable, BrokenFrames) {
  expect_mentions(error_of({}), {"has 0 bytes"});
  expect_mentions(error_of(std::vector<std::byte>(7)), {"has 7 bytes"});
  expect_mentions(error_of(std::vector<std::byte>(8)), {"does not start with '{'"});
  auto file = file_of("{}", 0);
  file[0] = std::byte{100};
  expect_mentions(error_of(file), {"header of 100 bytes", "only 2 bytes follow"});
  file[7] = std::byte{0xff};
  expect_mentions(error_of(file), {"at most 100000000 are allowed"});
  const std::string_view pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
  expect_mentions(error_of(std::as_bytes(std::span(pointer))), {"Git-LFS pointer", "git lfs pull"});
  EXPECT_TRUE(read_table(file_of("{}", 0), "f").has_value());
}

TEST(ReadTable, BadHeadersAreRefusedWithTheTensorsName) {
  struct Case {
    const char* header;
    const char* mention;
  };
  const Case cases[] = {
      {"{", "not valid JSON"},
      {"{]}", "not valid JSON"},
      {R"({"a":3})", "no object"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "lacks \"data_offsets\""},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "lacks \"shape\""},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "lacks \"dtype\""},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}})", "unknown field \"extra\""},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "gives \"dtype\" twice"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "unknown dtype \"F31\""},
      {R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", "no string"},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "no list"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "no integer from 0"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "no integer from 0"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
       "more than 2^63 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})",
       "more than 16 dimensions"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "a begin and a later end"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "a begin and a later end"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "two non-negative integers"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "two non-negative integers"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       "needs 8 bytes, but its data_offsets 0 to 4 hold 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "listed twice"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "overlaps tensor \"a\""},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       "bytes 4 to 8 belong to no tensor"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "bytes 0 to 4 belong to no tensor"},
      {R"({"__metadata__":{"a":1}})", "not a map of strings"},
      {R"({"__metadata__":[]})", "not a map of strings"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.header);
    expect_mentions(error_of(file_of(bad.header, 8)), {bad.mention});
  }
}

TEST(ReadTable, HostileNamesAreShownHarmlessly) {
  const std::string name(4000, 'x');
  const std::string error = error_of(file_of("{\"\\u001b[31m" + name + "\":1}", 0));
  expect_mentions(error, {"\\x1b[31m", "..."});
  EXPECT_LT(error.size(), 400u);
}

TEST(HeaderDump, ParsesPlainAndGzipAndChecksEachFile) {
  const std::string dump =
      R"({"m1":{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}},"m2":{"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}})";
  const auto table = parse_header_dump(dump, "dump");
  ASSERT_TRUE(table.has_value()) << table.error().to_string();
  EXPECT_EQ(table->shards().size(), 2u);
  EXPECT_EQ(table->file_of(*table->find("b")), "m2");
  EXPECT_EQ(table->data_bytes(), 7u);

  const fs::path path = test::scratch_dir() / "dump.json.gz";
  gzFile gz = gzopen(path.c_str(), "wb");
  gzwrite(gz, dump.data(), static_cast<unsigned>(dump.size()));
  gzclose(gz);
  EXPECT_EQ(load_header_dump(path)->size(), 2u);
  fs::resize_file(path, fs::file_size(path) - 9);
  const auto cut = load_header_dump(path);
  ASSERT_FALSE(cut.has_value());
  EXPECT_EQ(cut.error().code, ErrorCode::kInvalidData);
  EXPECT_EQ(load_header_dump(path.parent_path() / "none.json").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(read_maybe_gzip(path.parent_path(), 10).has_value());

  const auto twice = parse_header_dump(
      R"({"m1":{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},"m2":{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}})",
      "dump");
  ASSERT_FALSE(twice.has_value());
  expect_mentions(twice.error().message, {"\"a\"", "m1", "m2"});
  EXPECT_FALSE(parse_header_dump("[]", "dump").has_value());
  EXPECT_FALSE(parse_header_dump(R"({"m1":3})", "dump").has_value());
}

TEST(SafetensorsWriter, RoundTripsEveryByteAndName) {
  const fs::path path = test::scratch_dir() / "out.safetensors";
  const std::string odd_name = "we\"ird\\näme\n";
  auto writer = SafetensorsWriter::create(path,
                                          {{"empty", DType::kF32, {0}},
                                           {odd_name, DType::kI32, {2, 2}},
                                           {"none", DType::kU8, {0, 4}},
                                           {"x", DType::kBF16, {3}}},
                                          {{"source", "test"}});
  ASSERT_TRUE(writer.has_value());
  const std::vector<std::int32_t> ids = {1, -2, 3, 4};
  const std::vector<std::uint16_t> x = {7, 8, 9};
  ASSERT_TRUE(writer->append_values<std::int32_t>(odd_name, std::span(ids).first(1)).has_value());
  ASSERT_TRUE(writer->append_values<std::int32_t>(odd_name, std::span(ids).subspan(1)).has_value());
  EXPECT_FALSE(fs::exists(path));  // complete or absent
  ASSERT_TRUE(writer->append_values<std::uint16_t>("x", x).has_value());
  ASSERT_TRUE(writer->finish().has_value());

  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.has_value());
  const auto table = read_table(file->bytes(), "out");
  ASSERT_TRUE(table.has_value()) << table.error().to_string();
  EXPECT_EQ(table->shards()[0].data_begin % 8, 0u);
  const TensorInfo* tensor = table->find(odd_name);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (Shape{2, 2}));
  EXPECT_EQ(std::memcmp(file->bytes().data() + table->shards()[0].data_begin + tensor->begin, ids.data(), 16),
            0);
  EXPECT_EQ(table->find("empty")->bytes(), 0u);
}

TEST(SafetensorsWriter, LeavesNothingBehindWhenIncomplete) {
  const fs::path folder = test::scratch_dir();
  {
    auto writer = SafetensorsWriter::create(folder / "a.safetensors", {{"x", DType::kU8, {4}}});
    ASSERT_TRUE(writer.has_value());
    const std::vector<std::byte> three(3);
    ASSERT_TRUE(writer->append("x", three).has_value());
    EXPECT_FALSE(writer->finish().has_value());
    EXPECT_FALSE(writer->append("y", three).has_value());
    EXPECT_FALSE(writer->append("x", three).has_value());
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(SafetensorsWriter, RefusesWhatItCannotWrite) {
  const fs::path folder = test::scratch_dir();
  const auto missing = SafetensorsWriter::create(folder / "no" / "a.safetensors", {});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kCannotCreate);
  const fs::path path = folder / "a.safetensors";
  EXPECT_FALSE(SafetensorsWriter::create(path, {{"x", DType::kU8, {1}}, {"x", DType::kU8, {1}}}).has_value());
  EXPECT_FALSE(SafetensorsWriter::create(path, {{"x", DType::kU8, {-1}}}).has_value());
  EXPECT_FALSE(SafetensorsWriter::create(path, {{"x", DType::kF64, {std::int64_t{1} << 62}}}).has_value());
  EXPECT_FALSE(SafetensorsWriter::create(path, {{"__metadata__", DType::kU8, {1}}}).has_value());
  EXPECT_TRUE(fs::is_empty(folder));
}

}  // namespace
}  // namespace pivot
