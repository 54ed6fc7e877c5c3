#include "checkpoint/resolve.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/file.h"
#include "checkpoint/problems.h"

namespace pivot {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kRepositoryPrefix = "models--";
constexpr std::size_t kMinCommitDigits = 7;

std::optional<std::string> environment_value(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool present(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Letters, digits, '.', '_', '-' (and '/' in revisions), with no step upwards.
bool is_plain_name(std::string_view text, bool allow_slash) {
  if (text.empty() || text.front() == '/' || text.find("..") != std::string_view::npos) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return alphanumeric || c == '.' || c == '_' || c == '-' || (allow_slash && c == '/');
  });
}

bool is_commit_prefix(std::string_view text) {
  return text.size() >= kMinCommitDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// The snapshot folder of a cache entry for a revision.
Result<fs::path> find_snapshot(const fs::path& entry, const std::string& revision, bool revision_given) {
  const fs::path snapshots = entry / "snapshots";
  const std::vector<std::string> commits = entries_of(snapshots);
  const fs::path reference = entry / "refs" / revision;
  if (present(reference) && !is_folder(reference)) {
    PIVOT_TRY(std::string commit, read_file(reference, 4096));
    while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r' || commit.back() == ' '))
      commit.pop_back();
    if (!is_plain_name(commit, false)) {
      return fail(ErrorCode::kInvalidData, "{} should hold a commit and holds {}; download the model again",
                  reference.string(), quote_name(commit));
    }
    if (is_folder(snapshots / commit)) return snapshots / commit;
    return fail(ErrorCode::kNotFound,
                "{} names commit {}, but {} has no such folder (it has: {}); the download is incomplete, so "
                "finish it",
                reference.string(), commit, snapshots.string(), joined(commits));
  }
  if (is_commit_prefix(revision)) {
    std::vector<std::string> matches;
    for (const std::string& commit : commits) {
      if (commit.compare(0, revision.size(), revision) == 0) matches.push_back(commit);
    }
    if (matches.size() == 1) return snapshots / matches.front();
    if (matches.size() > 1) {
      return fail(ErrorCode::kInvalidArgument,
                  "revision {} fits several snapshots of {} ({}); give more digits", quote_name(revision),
                  entry.string(), joined(matches));
    }
  }
  if (!revision_given && commits.size() == 1) return snapshots / commits.front();
  return fail(ErrorCode::kNotFound,
              "{} has no revision {}; refs: {}; snapshots: {}. Name one of them after an '@'", entry.string(),
              quote_name(revision), joined(entries_of(entry / "refs")), joined(commits));
}

}  // namespace

HubEnvironment HubEnvironment::from_process() {
  return {environment_value("HF_HUB_CACHE"), environment_value("HF_HOME"), environment_value("HOME")};
}

fs::path HubEnvironment::cache_root() const {
  if (hf_hub_cache) return *hf_hub_cache;
  if (hf_home) return fs::path(*hf_home) / "hub";
  return fs::path(home.value_or("/")) / ".cache" / "huggingface" / "hub";
}

Result<fs::path> resolve_checkpoint(std::string_view path_or_name, const HubEnvironment& environment) {
  if (path_or_name.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the model is empty; give a checkpoint folder or ORG/NAME");
  }
  const fs::path path(path_or_name);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    // A symlink loop, a folder without access: the path is there but unusable, so no name is tried.
    return fail(errno_error(error.value(), "open", path));
  }
  if (fs::exists(status)) {
    if (fs::is_directory(status) && path.filename().string().rfind(kRepositoryPrefix, 0) == 0 &&
        is_folder(path / "snapshots")) {
      return find_snapshot(path, "main", false);
    }
    return path;
  }
  const std::size_t at = path_or_name.find('@');
  const std::string_view name = path_or_name.substr(0, at);
  const std::string revision =
      at == std::string_view::npos ? "main" : std::string(path_or_name.substr(at + 1));
  const std::size_t slash = name.find('/');
  const bool is_name = slash != std::string_view::npos && is_plain_name(name.substr(0, slash), false) &&
                       is_plain_name(name.substr(slash + 1), false) && is_plain_name(revision, true);
  if (!is_name) {
    return fail(ErrorCode::kNotFound,
                "there is no {}; a checkpoint folder, a .safetensors file or ORG/NAME[@revision] from the "
                "Hugging Face "
                "cache was wanted",
                path.string());
  }
  const fs::path root = environment.cache_root();
  const fs::path entry =
      root / fmt::format("{}{}--{}", kRepositoryPrefix, name.substr(0, slash), name.substr(slash + 1));
  if (!is_folder(entry)) {
    return fail(
        ErrorCode::kNotFound,
        "there is no folder {} and no cached model {} (looked for {}); download it first, for instance with "
        "'hf download {}', or set HF_HUB_CACHE or HF_HOME to the cache that has it",
        path.string(), name, entry.string(), name);
  }
  return find_snapshot(entry, revision, at != std::string_view::npos);
}

}  // namespace pivot
