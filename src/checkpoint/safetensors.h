// The safetensors container: strict reading of headers, and the table of all tensors of a checkpoint.
//
// A file is 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the
// data. Nothing of a header is believed before it is checked: bounds, overlaps, holes, dtype x shape = bytes,
// duplicate names. Works on headers alone too, because most facts about a checkpoint need no tensor data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/problems.h"
#include "tensor/view.h"

namespace pivot {

// The reference implementation's cap on a header.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::uint64_t begin = 0;  // bytes from the start of the shard's data section, as data_offsets says
  std::uint64_t end = 0;
  std::uint32_t shard = 0;  // index into TensorTable::shards()

  std::uint64_t bytes() const { return end - begin; }
};

struct ShardInfo {
  std::string file;              // name inside the folder
  std::uint64_t data_begin = 0;  // file offset of the data section; 0 where only the header is known
  std::uint64_t data_bytes = 0;  // size of the data section
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__
};

// Every tensor of a checkpoint, in shard and header order, found by name in constant time. Move-only.
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(TensorTable&&) = default;
  TensorTable& operator=(TensorTable&&) = default;
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;

  std::span<const TensorInfo> tensors() const { return tensors_; }
  std::span<const ShardInfo> shards() const { return shards_; }
  std::size_t size() const { return tensors_.size(); }
  const TensorInfo* find(std::string_view name) const;  // nullptr where there is none
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const std::string& file_of(const TensorInfo& tensor) const { return shards_[tensor.shard].file; }
  std::uint64_t data_bytes() const;  // sum over the shards

 private:
  friend class TensorTableBuilder;
  std::vector<TensorInfo> tensors_;
  std::vector<ShardInfo> shards_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;  // keys point into tensors_
};

// Builds a table shard by shard; whatever is wrong goes to `problems` with file and tensor names.
class TensorTableBuilder {
 public:
  explicit TensorTableBuilder(Problems& problems) : problems_(problems) {}

  // Adds the tensors of one header. `data_bytes` is the size of the data section where the file is at hand
  // (the header must cover it exactly); nullopt takes it from the header. `data_begin` as in ShardInfo.
  void add_header(std::string file, std::string_view header_json, std::optional<std::uint64_t> data_bytes,
                  std::uint64_t data_begin = 0);
  // Adds a whole file's bytes (a mapping): length field, header, data bounds. Recognises Git-LFS pointers.
  void add_file(std::string file, std::span<const std::byte> bytes);

  // Duplicate names across shards are reported here. The table is usable only while no problem was added.
  TensorTable finish();

  // Adds tensors already parsed. `complete`: all of the header's entries are among them, so tiling can be
  // judged.
  void append(std::string file, std::vector<TensorInfo> tensors,
              std::vector<std::pair<std::string, std::string>> metadata,
              std::optional<std::uint64_t> data_bytes, std::uint64_t data_begin, bool complete);

 private:
  Problems& problems_;
  std::vector<TensorInfo> tensors_;
  std::vector<ShardInfo> shards_;
};

// One safetensors file (for instance a golden): its table. The mapping stays with the caller.
Result<TensorTable> read_table(std::span<const std::byte> file_bytes, std::string_view file);

// {"file name": {header}, ...}, as text.
Result<TensorTable> parse_header_dump(std::string_view json, std::string_view where);
// The same from a file, plain or gzip.
Result<TensorTable> load_header_dump(const std::filesystem::path& path);

// "version https://git-lfs..." text in place of data.
bool is_lfs_pointer(std::span<const std::byte> bytes);

// Reads a file that may be gzip-compressed; refuses more than max_bytes of plain contents.
Result<std::string> read_maybe_gzip(const std::filesystem::path& path,
                                    std::size_t max_bytes = std::size_t{1} << 30);

}  // namespace pivot
