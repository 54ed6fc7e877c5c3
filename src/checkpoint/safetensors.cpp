#include "checkpoint/safetensors.h"

#include <simdjson.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <unordered_set>

#include "base/file.h"

namespace pivot {
namespace {

constexpr std::size_t kMaxDims = 16;
constexpr std::string_view kLfsPrefix = "version https://git-lfs";
constexpr std::string_view kFetchAgain = "fetch the file again";

struct ParsedHeader {
  std::vector<TensorInfo> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Names what went wrong with one tensor; the file and the tensor lead every sentence.
class TensorProblem {
 public:
  TensorProblem(std::string_view file, std::string_view name, Problems& problems)
      : where_(fmt::format("{}: tensor {}", file, quote_name(name))), problems_(problems) {}

  template <class... Args>
  void operator()(fmt::format_string<Args...> format, Args&&... args) const {
    problems_.add_sentence(ErrorCode::kInvalidData,
                           where_ + " " + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string where_;
  Problems& problems_;
};

bool read_shape(const simdjson::dom::element& value, Shape& shape, const TensorProblem& problem) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    problem("has a \"shape\" that is no list");
    return false;
  }
  for (const simdjson::dom::element& entry : array) {
    std::int64_t extent = 0;
    if (entry.get(extent) != simdjson::SUCCESS || extent < 0) {
      problem("has a \"shape\" entry that is no integer from 0 to 2^63-1");
      return false;
    }
    if (shape.size() == kMaxDims) {
      problem("has more than {} dimensions", kMaxDims);
      return false;
    }
    shape.push_back(extent);
  }
  return true;
}

bool read_offsets(const simdjson::dom::element& value, TensorInfo& tensor, const TensorProblem& problem) {
  simdjson::dom::array array;
  std::uint64_t offsets[2] = {0, 0};
  std::size_t count = 0;
  if (value.get(array) != simdjson::SUCCESS) {
    problem("has \"data_offsets\" that are no list");
    return false;
  }
  for (const simdjson::dom::element& entry : array) {
    if (count == 2 || entry.get(offsets[count]) != simdjson::SUCCESS) {
      problem("has \"data_offsets\" that are not two non-negative integers");
      return false;
    }
    ++count;
  }
  if (count != 2 || offsets[0] > offsets[1]) {
    problem("has \"data_offsets\" that are not a begin and a later end");
    return false;
  }
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  return true;
}

// elements x width, or nullopt where that leaves 63 bits.
std::optional<std::uint64_t> checked_bytes(const Shape& shape, DType dtype) {
  std::int64_t bytes = dtype_bytes(dtype);
  // A zero extent anywhere means no bytes at all, whatever the others multiply to.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes);
}

bool read_tensor(const simdjson::dom::element& value, TensorInfo& tensor, const TensorProblem& problem) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) {
    problem("is described by something that is no object");
    return false;
  }
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
  for (const auto& [key, field] : object) {
    bool* seen = key == "dtype"          ? &has_dtype
                 : key == "shape"        ? &has_shape
                 : key == "data_offsets" ? &has_offsets
                                         : nullptr;
    if (seen == nullptr) {
      problem("has the unknown field {}", quote_name(key));
      return false;
    }
    if (std::exchange(*seen, true)) {
      problem("gives {} twice", quote_name(key));
      return false;
    }
    if (seen == &has_dtype) {
      std::string_view name;
      if (field.get(name) != simdjson::SUCCESS) {
        problem("has a \"dtype\" that is no string");
        return false;
      }
      const auto dtype = parse_dtype(name);
      if (!dtype) {
        problem("has the unknown dtype {}", quote_name(name));
        return false;
      }
      tensor.dtype = *dtype;
    } else if (seen == &has_shape) {
      if (!read_shape(field, tensor.shape, problem)) return false;
    } else if (!read_offsets(field, tensor, problem)) {
      return false;
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) {
    problem("lacks {}", !has_dtype ? "\"dtype\"" : !has_shape ? "\"shape\"" : "\"data_offsets\"");
    return false;
  }
  const auto bytes = checked_bytes(tensor.shape, tensor.dtype);
  if (!bytes) {
    problem("has shape {}, which is more than 2^63 bytes", to_string(tensor.shape));
    return false;
  }
  if (*bytes != tensor.bytes()) {
    problem("is {} {}, which needs {} bytes, but its data_offsets {} to {} hold {}", dtype_name(tensor.dtype),
            to_string(tensor.shape), *bytes, tensor.begin, tensor.end, tensor.bytes());
    return false;
  }
  return true;
}

void read_metadata(const simdjson::dom::element& value, std::string_view file, ParsedHeader& header,
                   Problems& problems) {
  simdjson::dom::object object;
  bool valid = value.get(object) == simdjson::SUCCESS;
  if (valid) {
    for (const auto& [key, field] : object) {
      std::string_view text;
      if (field.get(text) != simdjson::SUCCESS) {
        valid = false;
        break;
      }
      header.metadata.emplace_back(key, text);
    }
  }
  if (!valid) problems.add(ErrorCode::kInvalidData, "{}: \"__metadata__\" is not a map of strings", file);
}

// Reads every entry of one header object. The tensors' `shard` is left 0.
ParsedHeader read_header(const simdjson::dom::object& object, std::string_view file, Problems& problems) {
  ParsedHeader header;
  header.tensors.reserve(object.size());
  std::unordered_set<std::string_view> names;
  for (const auto& [key, value] : object) {
    if (!names.insert(key).second) {
      problems.add(ErrorCode::kInvalidData, "{}: tensor {} is listed twice in the header", file,
                   quote_name(key));
      continue;
    }
    if (key == "__metadata__") {
      read_metadata(value, file, header, problems);
      continue;
    }
    TensorInfo tensor;
    tensor.name = std::string(key);
    if (read_tensor(value, tensor, TensorProblem(file, key, problems)))
      header.tensors.push_back(std::move(tensor));
  }
  return header;
}

// Tensors must tile the data section: no overlap, no hole, no byte beyond the file, none left over. Returns
// the end of the last tensor.
std::uint64_t check_tiling(const std::vector<TensorInfo>& tensors, std::string_view file,
                           std::optional<std::uint64_t> data_bytes, Problems& problems) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(tensors[a].begin, tensors[a].end) < std::pair(tensors[b].begin, tensors[b].end);
  });
  std::uint64_t covered = 0;
  const TensorInfo* previous = nullptr;
  const TensorInfo* beyond = nullptr;
  std::size_t num_beyond = 0;
  for (std::uint32_t index : order) {
    const TensorInfo& tensor = tensors[index];
    if (tensor.begin < covered && tensor.end > tensor.begin) {
      problems.add(ErrorCode::kInvalidData,
                   "{}: tensor {} starts at data byte {} and overlaps tensor {}, which ends at {}", file,
                   quote_name(tensor.name), tensor.begin, quote_name(previous->name), previous->end);
    } else if (tensor.begin > covered) {
      problems.add(ErrorCode::kInvalidData,
                   "{}: data bytes {} to {} belong to no tensor (a hole before tensor {})", file, covered,
                   tensor.begin, quote_name(tensor.name));
    }
    if (data_bytes && tensor.end > *data_bytes) {
      if (beyond == nullptr) beyond = &tensor;
      ++num_beyond;
    }
    if (tensor.end >= covered) {
      covered = tensor.end;
      previous = &tensor;
    }
  }
  if (beyond != nullptr) {
    const std::uint64_t found = beyond->begin < *data_bytes ? *data_bytes - beyond->begin : 0;
    problems.add(
        ErrorCode::kInvalidData,
        "{}: tensor {} needs {} bytes and the file holds {} of them{}; the file is cut {} bytes short, {}",
        file, quote_name(beyond->name), beyond->bytes(), found,
        num_beyond > 1 ? fmt::format(" ({} more tensors lie beyond its end)", num_beyond - 1) : "",
        covered - *data_bytes, kFetchAgain);
  } else if (data_bytes && *data_bytes > covered) {
    problems.add(
        ErrorCode::kInvalidData,
        "{}: {} bytes follow the last tensor (the header covers {} data bytes, the file holds {}); {}", file,
        *data_bytes - covered, covered, *data_bytes, kFetchAgain);
  }
  return covered;
}

std::string json_error(simdjson::error_code error) { return simdjson::error_message(error); }

struct GzipCloser {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

}  // namespace

// ---- TensorTable ----

const TensorInfo* TensorTable::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::uint64_t TensorTable::data_bytes() const {
  std::uint64_t sum = 0;
  for (const ShardInfo& shard : shards_) sum += shard.data_bytes;
  return sum;
}

// ---- TensorTableBuilder ----

void TensorTableBuilder::append(std::string file, std::vector<TensorInfo> tensors,
                                std::vector<std::pair<std::string, std::string>> metadata,
                                std::optional<std::uint64_t> data_bytes, std::uint64_t data_begin,
                                bool complete) {
  // A tensor that could not be read leaves a hole that is not the file's fault: tiling is checked on whole
  // headers.
  std::uint64_t covered = 0;
  if (complete) covered = check_tiling(tensors, file, data_bytes, problems_);
  const auto shard = static_cast<std::uint32_t>(shards_.size());
  for (TensorInfo& tensor : tensors) tensor.shard = shard;
  tensors_.insert(tensors_.end(), std::make_move_iterator(tensors.begin()),
                  std::make_move_iterator(tensors.end()));
  shards_.push_back({std::move(file), data_begin, data_bytes.value_or(covered), std::move(metadata)});
}

void TensorTableBuilder::add_header(std::string file, std::string_view header_json,
                                    std::optional<std::uint64_t> data_bytes, std::uint64_t data_begin) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object object;
  ParsedHeader header;
  const std::size_t before = problems_.count();
  if (const auto error = parser.parse(header_json.data(), header_json.size()).get(root);
      error != simdjson::SUCCESS) {
    problems_.add(ErrorCode::kInvalidData, "{}: the header is not valid JSON ({}); {}", file,
                  json_error(error), kFetchAgain);
  } else if (root.get(object) != simdjson::SUCCESS) {
    problems_.add(ErrorCode::kInvalidData, "{}: the header is no JSON object; {}", file, kFetchAgain);
  } else {
    header = read_header(object, file, problems_);
  }
  append(std::move(file), std::move(header.tensors), std::move(header.metadata), data_bytes, data_begin,
         problems_.count() == before);
}

void TensorTableBuilder::add_file(std::string file, std::span<const std::byte> bytes) {
  // The shard is entered even when broken, so that shard numbers match the caller's list of files.
  auto broken = [&](std::string sentence) {
    problems_.add_sentence(ErrorCode::kInvalidData, std::move(sentence));
    shards_.push_back({std::move(file), 0, 0, {}});
  };
  if (is_lfs_pointer(bytes)) {
    return broken(
        fmt::format("{} is a Git-LFS pointer of {} bytes, not the weights; run 'git lfs pull' in its "
                    "repository",
                    file, bytes.size()));
  }
  if (bytes.size() < 8) {
    return broken(fmt::format("{} has {} bytes; a safetensors file starts with 8 bytes of header length, {}",
                              file, bytes.size(), kFetchAgain));
  }
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  const std::uint64_t rest = bytes.size() - 8;
  if (header_bytes > kMaxHeaderBytes) {
    return broken(
        fmt::format("{} states a header of {} bytes; at most {} are allowed, so this is no safetensors file "
                    "or a damaged one",
                    file, header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > rest) {
    return broken(
        fmt::format("{} states a header of {} bytes but only {} bytes follow; the file is cut short, {}",
                    file, header_bytes, rest, kFetchAgain));
  }
  const std::string_view header = as_text(bytes).substr(8, header_bytes);
  if (header.empty() || header.front() != '{') {
    return broken(fmt::format("{}: the header does not start with '{{'; this is no safetensors file", file));
  }
  add_header(std::move(file), header, rest - header_bytes, 8 + header_bytes);
}

TensorTable TensorTableBuilder::finish() {
  TensorTable table;
  table.tensors_ = std::move(tensors_);
  table.shards_ = std::move(shards_);
  table.by_name_.reserve(table.tensors_.size());
  for (std::size_t i = 0; i < table.tensors_.size(); ++i) {
    const TensorInfo& tensor = table.tensors_[i];
    const auto [entry, inserted] = table.by_name_.emplace(tensor.name, static_cast<std::uint32_t>(i));
    if (!inserted) {
      problems_.add(ErrorCode::kInvalidData, "tensor {} is in {} and again in {}", quote_name(tensor.name),
                    table.file_of(table.tensors_[entry->second]), table.file_of(tensor));
    }
  }
  return table;
}

// ---- whole files and dumps ----

bool is_lfs_pointer(std::span<const std::byte> bytes) {
  return as_text(bytes).substr(0, kLfsPrefix.size()) == kLfsPrefix;
}

Result<TensorTable> read_table(std::span<const std::byte> file_bytes, std::string_view file) {
  Problems problems;
  TensorTableBuilder builder(problems);
  builder.add_file(std::string(file), file_bytes);
  TensorTable table = builder.finish();
  if (!problems.empty()) return fail(problems.to_error(file));
  return table;
}

Result<TensorTable> parse_header_dump(std::string_view json, std::string_view where) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object files;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return fail(ErrorCode::kInvalidData, "{} is not valid JSON ({})", where, json_error(error));
  }
  if (root.get(files) != simdjson::SUCCESS) {
    return fail(ErrorCode::kInvalidData, "{} is no JSON object of the form {{\"file name\": {{header}}}}",
                where);
  }
  Problems problems;
  TensorTableBuilder builder(problems);
  std::unordered_set<std::string_view> names;
  for (const auto& [file, value] : files) {
    simdjson::dom::object object;
    if (!names.insert(file).second) {
      problems.add(ErrorCode::kInvalidData, "file {} is listed twice", quote_name(file));
    } else if (value.get(object) != simdjson::SUCCESS) {
      problems.add(ErrorCode::kInvalidData, "the entry of file {} is no header object", quote_name(file));
    } else {
      const std::size_t before = problems.count();
      ParsedHeader header = read_header(object, file, problems);
      builder.append(std::string(file), std::move(header.tensors), std::move(header.metadata), std::nullopt,
                     0, problems.count() == before);
    }
  }
  TensorTable table = builder.finish();
  if (!problems.empty()) return fail(problems.to_error(where));
  return table;
}

Result<TensorTable> load_header_dump(const std::filesystem::path& path) {
  PIVOT_TRY(const std::string text, read_maybe_gzip(path));
  return parse_header_dump(text, path.string());
}

Result<std::string> read_maybe_gzip(const std::filesystem::path& path, std::size_t max_bytes) {
  errno = 0;
  const std::unique_ptr<gzFile_s, GzipCloser> file(gzopen(path.c_str(), "rbe"));
  if (file == nullptr) return fail(errno_error(errno == 0 ? ENOMEM : errno, "open", path));
  std::string contents;
  std::string chunk(std::size_t{1} << 18, '\0');
  while (true) {
    errno = 0;
    const int count = gzread(file.get(), chunk.data(), static_cast<unsigned>(chunk.size()));
    if (count < 0) {
      int code = Z_OK;
      const std::string what = gzerror(file.get(), &code);
      if (code == Z_ERRNO) return fail(errno_error(errno, "read", path));
      return fail(ErrorCode::kInvalidData, "{} is damaged ({}); fetch the file again", path.string(), what);
    }
    if (count == 0) break;
    if (contents.size() + static_cast<std::size_t>(count) > max_bytes) {
      return fail(ErrorCode::kInvalidData, "{} holds more than the {} bytes allowed for it", path.string(),
                  max_bytes);
    }
    contents.append(chunk.data(), static_cast<std::size_t>(count));
  }
  int code = Z_OK;
  gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    return fail(ErrorCode::kInvalidData, "{} is cut short; fetch the file again", path.string());
  }
  return contents;
}

}  // namespace pivot
