#include "checkpoint/inspect/subject.h"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "checkpoint/problems.h"
#include "checkpoint/resolve.h"

namespace pivot {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 26;
constexpr std::size_t kMaxDumpBytes = std::size_t{1} << 30;
// A shard whose last change is this recent may still grow.
constexpr std::int64_t kSettledSeconds = 10;

// Names that downloaders and converters give to files that are not finished.
bool is_partial_name(std::string_view name) {
  for (const std::string_view suffix : {".incomplete", ".part", ".partial", ".aria2", ".tmp", ".download"})
    if (name.ends_with(suffix)) return true;
  return name.find(".partial.") != std::string_view::npos || name.find(".tmp.") != std::string_view::npos;
}

bool is_weight_name(std::string_view name) { return name.ends_with(".safetensors"); }

std::vector<fs::path> children(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    paths.push_back(at->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> find_writers(const fs::path& folder) {
  std::vector<std::string> signs;
  const std::int64_t now = std::time(nullptr);
  // The downloader keeps partial files of a --local-dir here, and those of the cache beside the blobs.
  for (const fs::path& place : {folder, folder / ".cache" / "huggingface" / "download",
                                folder.parent_path().parent_path() / "blobs"}) {
    for (const fs::path& path : children(place)) {
      const std::string name = path.filename().string();
      if (is_partial_name(name)) {
        signs.push_back(fmt::format("{} is a partial file", path.lexically_relative(folder).string()));
        continue;
      }
      struct stat status {};
      if (place != folder || !is_weight_name(name) || ::stat(path.c_str(), &status) != 0) continue;
      const std::int64_t age = now - status.st_mtim.tv_sec;
      if (age >= 0 && age < kSettledSeconds) signs.push_back(fmt::format("{} changed {} s ago", name, age));
    }
  }
  return signs;
}

}  // namespace

bool looks_like_checkpoint(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "config.json", error)) return true;
  for (const fs::path& path : children(folder)) {
    const std::string name = path.filename().string();
    if (is_weight_name(name) || name.ends_with(".safetensors.index.json")) return true;
  }
  return false;
}

std::vector<fs::path> find_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::path& path : children(folder)) {
    if (!fs::is_directory(path, error)) continue;  // false for symlink loops and unreadable targets
    if (path.filename().string().starts_with("models--")) {
      for (const fs::path& snapshot : children(path / "snapshots"))
        if (fs::is_directory(snapshot, error)) found.push_back(snapshot);
    } else if (looks_like_checkpoint(path)) {
      found.push_back(path);
    }
  }
  return found;
}

Result<Subject> Subject::open(std::string_view path_or_name, const std::optional<fs::path>& config) {
  Subject subject;
  subject.label_ = std::string(path_or_name);
  PIVOT_TRY(subject.path_, resolve_checkpoint(path_or_name));
  std::error_code error;
  const bool folder = fs::is_directory(subject.path_, error);
  const std::string name = subject.path_.filename().string();
  if (folder || is_weight_name(name)) {
    PIVOT_TRY_VOID(subject.open_folder());
  } else {
    PIVOT_TRY_VOID(subject.open_dump(config));
  }
  if (config) {
    PIVOT_TRY(subject.config_text_, read_file(*config, kMaxTextBytes));
  }
  return subject;
}

Result<> Subject::open_dump(const std::optional<fs::path>& config) {
  auto table = load_header_dump(path_);
  if (!table) {
    auto error = std::move(table).error();
    return fail(std::move(error).with(fmt::format(
        "{} is neither a checkpoint folder nor a .safetensors file nor a header dump", path_.string())));
  }
  headers_ = std::move(*table);
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  if (!config) {
    if (auto text = read_file(folder / "config.json", kMaxTextBytes)) config_text_ = std::move(*text);
  }
  if (auto text =
          read_file((config ? config->parent_path() : folder) / "hf_quant_config.json", kMaxTextBytes))
    hf_quant_text_ = std::move(*text);
  return {};
}

Result<> Subject::open_folder() {
  std::error_code error;
  const bool is_folder = fs::is_directory(path_, error);
  const fs::path folder = is_folder ? path_ : path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  if (is_folder) {
    // Without the right to list it nothing below would say why it looks empty.
    fs::directory_iterator probe(folder, error);
    if (error) return fail(errno_error(error.value(), "list", folder));
  }
  being_written_ = find_writers(folder);
  Problems problems;
  checkpoint_ = Checkpoint::open(path_.string(), HubEnvironment::from_process(), problems);
  if (checkpoint_) {
    config_text_ = checkpoint_->config_text();
    hf_quant_text_ = checkpoint_->hf_quant_text();
    index_total_size_ = checkpoint_->index_total_size();
    return {};
  }
  if (auto text = read_file(folder / "config.json", kMaxTextBytes)) config_text_ = std::move(*text);
  if (auto text = read_file(folder / "hf_quant_config.json", kMaxTextBytes))
    hf_quant_text_ = std::move(*text);
  const std::vector<fs::path> inside = children(folder);
  const bool weights = std::any_of(inside.begin(), inside.end(), [](const fs::path& path) {
    const std::string name = path.filename().string();
    return is_weight_name(name) || name.ends_with(".safetensors.index.json");
  });
  if (!weights && config_text_) return {};  // a config alone is a fair question
  if (!looks_like_checkpoint(folder)) return fail(problems.to_error(label_));
  problems_ = problems.sentences();
  salvage_headers();
  return {};
}

// The tensors of those shards whose headers are sound by themselves.
void Subject::salvage_headers() {
  std::error_code error;
  const fs::path folder = fs::is_directory(path_, error) ? path_ : path_.parent_path();
  Problems conflicts;
  TensorTableBuilder builder(conflicts);
  for (const fs::path& path : children(folder)) {
    if (!is_weight_name(path.filename().string())) continue;
    const auto file = MappedFile::open(path);
    if (!file) continue;
    Problems problems;
    TensorTableBuilder alone(problems);
    alone.add_file(path.filename().string(), file->bytes());
    if (problems.empty()) builder.add_file(path.filename().string(), file->bytes());
  }
  TensorTable table = builder.finish();
  if (conflicts.empty()) headers_ = std::move(table);
}

}  // namespace pivot
