#include "checkpoint/checkpoint.h"

#include <simdjson.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"

namespace pivot {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::size_t kMaxIndexBytes = std::size_t{1} << 28;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 26;

struct Index {
  std::map<std::string, std::vector<std::string>, std::less<>> tensors_by_file;
  std::optional<std::uint64_t> total_size;
};

// The shard stays inside its folder: a relative path without a step upwards (symlinks into a blob store are
// fine).
bool is_inside(std::string_view file) {
  const fs::path path(file);
  if (file.empty() || path.is_absolute() || file.find('\\') != std::string_view::npos ||
      file.find('\0') != std::string_view::npos) {
    return false;
  }
  return std::none_of(path.begin(), path.end(),
                      [](const fs::path& part) { return part == ".." || part == "."; });
}

std::optional<Index> parse_index(std::string_view text, Problems& problems) {
  auto bad = [&](std::string_view what) {
    problems.add(ErrorCode::kInvalidData, "{} {}; fetch the file again", kIndexName, what);
    return std::nullopt;
  };
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object object;
  if (const auto error = parser.parse(text.data(), text.size()).get(root); error != simdjson::SUCCESS) {
    return bad(fmt::format("is not valid JSON ({})", simdjson::error_message(error)));
  }
  simdjson::dom::object weight_map;
  if (root.get(object) != simdjson::SUCCESS || object["weight_map"].get(weight_map) != simdjson::SUCCESS) {
    return bad("has no \"weight_map\" object");
  }
  Index index;
  std::uint64_t total = 0;
  if (object["metadata"]["total_size"].get(total) == simdjson::SUCCESS) index.total_size = total;
  std::set<std::string_view> seen;
  std::set<std::string_view> refused;
  for (const auto& [name, value] : weight_map) {
    std::string_view file;
    if (value.get(file) != simdjson::SUCCESS) {
      problems.add(ErrorCode::kInvalidData, "{} maps tensor {} to something that is no file name", kIndexName,
                   quote_name(name));
    } else if (!seen.insert(name).second) {
      problems.add(ErrorCode::kInvalidData, "{} lists tensor {} twice", kIndexName, quote_name(name));
    } else if (!is_inside(file)) {
      if (refused.insert(file).second) {
        problems.add(ErrorCode::kInvalidData,
                     "{} maps tensor {} to {}, which lies outside the checkpoint folder; refusing to read it",
                     kIndexName, quote_name(name), quote_name(file));
      }
    } else {
      index.tensors_by_file[std::string(file)].emplace_back(name);
    }
  }
  if (index.tensors_by_file.empty() && refused.empty()) return bad("lists no tensors");
  return index;
}

std::vector<std::string> safetensors_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A text file that may be absent; anything else that keeps it from being read is a problem.
std::optional<std::string> read_optional(const fs::path& path, std::size_t max_bytes, Problems& problems) {
  auto text = read_file(path, max_bytes);
  if (!text) {
    if (text.error().code != ErrorCode::kNotFound) problems.add(text.error());
    return std::nullopt;
  }
  return std::move(*text);
}

// A text that a checkpoint carries: empty files and Git-LFS pointers are download accidents, told with the
// rest.
void check_text(std::string_view name, std::string_view text, Problems& problems) {
  if (text.empty()) {
    problems.add(ErrorCode::kInvalidData, "{} has 0 bytes; fetch the file again", name);
  } else if (is_lfs_pointer(std::as_bytes(std::span(text)))) {
    problems.add(ErrorCode::kInvalidData,
                 "{} is a Git-LFS pointer, not the file; run 'git lfs pull' in its repository", name);
  }
}

void check_side_files(const fs::path& folder, Problems& problems) {
  for (std::string_view name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    std::error_code error;
    if (!fs::exists(folder / name, error)) continue;  // whoever needs it says so
    auto file = MappedFile::open(folder / name);
    if (!file) {
      problems.add(file.error());
      continue;
    }
    const auto bytes = file->bytes();
    check_text(name, {reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 64)},
               problems);
  }
}

// What the index promises against what the shards hold: each tensor in exactly the shard named, and none
// besides.
void compare_with_index(const Index& index, const TensorTable& table, const std::set<std::string>& broken,
                        Problems& problems) {
  std::set<std::string_view> listed_names;
  for (const auto& [file, names] : index.tensors_by_file) {
    for (const std::string& name : names) listed_names.insert(name);
    if (broken.count(file) != 0) continue;
    for (const std::string& name : names) {
      const TensorInfo* tensor = table.find(name);
      if (tensor == nullptr) {
        problems.add(ErrorCode::kInvalidData,
                     "{} lists tensor {} in {}, which does not hold it; fetch both again", kIndexName,
                     quote_name(name), file);
      } else if (table.file_of(*tensor) != file) {
        problems.add(ErrorCode::kInvalidData, "{} lists tensor {} in {}, but it is in {}", kIndexName,
                     quote_name(name), file, table.file_of(*tensor));
      }
    }
  }
  if (!broken.empty() || table.size() <= listed_names.size()) return;
  for (const TensorInfo& tensor : table.tensors()) {
    if (listed_names.count(tensor.name) == 0) {
      problems.add(ErrorCode::kInvalidData, "{} holds tensor {}, which {} does not list",
                   table.file_of(tensor), quote_name(tensor.name), kIndexName);
    }
  }
}

struct Files {
  std::vector<std::string> names;  // in index (sorted) order
  std::optional<Index> index;
};

// Which files hold the weights: those of the index, or the single model.safetensors.
Files find_files(const fs::path& folder, Problems& problems) {
  Files files;
  std::error_code error;
  if (const auto text = read_optional(folder / kIndexName, kMaxIndexBytes, problems)) {
    const std::size_t before = problems.count();
    check_text(kIndexName, *text, problems);
    if (problems.count() == before) files.index = parse_index(*text, problems);
    if (files.index) {
      for (const auto& [file, names] : files.index->tensors_by_file) files.names.push_back(file);
    }
    return files;
  }
  if (!problems.empty()) return files;
  if (fs::exists(fs::symlink_status(folder / kSingleName, error))) {
    files.names.emplace_back(kSingleName);
    return files;
  }
  const std::vector<std::string> found = safetensors_in(folder);
  if (found.empty()) {
    problems.add(
        ErrorCode::kNotFound,
        "no weights: neither {} nor {} is there; a checkpoint folder in safetensors format was wanted",
        kIndexName, kSingleName);
  } else {
    problems.add(
        ErrorCode::kNotFound,
        "{} is missing although there are {} .safetensors files ({}, ...); without the index nobody can tell "
        "whether all shards are there, so fetch it too",
        kIndexName, found.size(), found.front());
  }
  return files;
}

}  // namespace

std::optional<Checkpoint> Checkpoint::open(std::string_view path_or_name, const HubEnvironment& environment,
                                           Problems& problems) {
  auto resolved = resolve_checkpoint(path_or_name, environment);
  if (!resolved) {
    problems.add(resolved.error());
    return std::nullopt;
  }
  const std::size_t before = problems.count();
  Checkpoint checkpoint;
  Files files;
  std::error_code error;
  if (fs::is_directory(*resolved, error)) {
    checkpoint.folder_ = *resolved;
    files = find_files(*resolved, problems);
  } else {
    checkpoint.folder_ = resolved->has_parent_path() ? resolved->parent_path() : fs::path(".");
    files.names.push_back(resolved->filename().string());
  }
  const fs::path& folder = checkpoint.folder_;
  checkpoint.config_text_ = read_optional(folder / "config.json", kMaxTextBytes, problems);
  if (checkpoint.config_text_) check_text("config.json", *checkpoint.config_text_, problems);
  checkpoint.hf_quant_text_ = read_optional(folder / "hf_quant_config.json", kMaxTextBytes, problems);
  check_side_files(folder, problems);

  std::vector<MappedFile> mappings;
  std::set<std::string> broken;  // their tensors are unknown; not reported one by one
  TensorTableBuilder builder(problems);
  for (const std::string& name : files.names) {
    auto file = MappedFile::open(folder / name);
    const std::size_t count = problems.count();
    if (!file) {
      if (file.error().code == ErrorCode::kNotFound) {
        problems.add(ErrorCode::kNotFound, "shard {} is missing{}; fetch it", name,
                     files.index ? fmt::format(" although {} lists it", kIndexName) : "");
      } else {
        problems.add(file.error());
      }
    } else {
      builder.add_file(name, file->bytes());
      mappings.push_back(std::move(*file));
      const MappedFile& mapped = mappings.back();
      mapped.release(0, mapped.bytes().size());  // the header's pages
    }
    if (problems.count() != count) broken.insert(name);
  }
  checkpoint.table_ = builder.finish();
  if (files.index) {
    checkpoint.index_total_size_ = files.index->total_size;
    compare_with_index(*files.index, checkpoint.table_, broken, problems);
  }
  if (problems.count() != before) return std::nullopt;
  checkpoint.mappings_ = std::make_shared<const std::vector<MappedFile>>(std::move(mappings));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open(std::string_view path_or_name, const HubEnvironment& environment) {
  Problems problems;
  auto checkpoint = open(path_or_name, environment, problems);
  if (!checkpoint) return fail(problems.to_error(fmt::format("checkpoint {}", path_or_name)));
  return std::move(*checkpoint);
}

std::uint64_t Checkpoint::file_bytes() const {
  std::uint64_t sum = 0;
  for (const MappedFile& file : *mappings_) sum += file.bytes().size();
  return sum;
}

void Checkpoint::release_pages() const {
  for (const MappedFile& file : *mappings_) file.release(0, file.bytes().size());
}

void Checkpoint::release_pages(const TensorInfo& tensor) const {
  (*mappings_)[tensor.shard].release(table_.shards()[tensor.shard].data_begin + tensor.begin, tensor.bytes());
}

TensorView Checkpoint::view(const TensorInfo& tensor) const {
  const ShardInfo& shard = table_.shards()[tensor.shard];
  const auto bytes = (*mappings_)[tensor.shard].bytes();
  PIVOT_CHECK(shard.data_begin + tensor.end <= bytes.size(), "tensor {}", tensor.name);
  return {tensor.dtype, tensor.shape, bytes.data() + shard.data_begin + tensor.begin};
}

Result<TensorView> Checkpoint::view(std::string_view name) const {
  const TensorInfo* tensor = table_.find(name);
  if (tensor == nullptr) {
    return fail(ErrorCode::kNotFound, "{} has no tensor {}", folder_.string(), quote_name(name));
  }
  return view(*tensor);
}

}  // namespace pivot
