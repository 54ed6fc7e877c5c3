#include "checkpoint/convert/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace pivot {
namespace fs = std::filesystem;

namespace {

constexpr const char* kLockName = ".pivot-convert.lock";

bool is_own(const std::string& name) {
  return name == kJournalName || name == kLockName || name.find(std::string(kJournalName) + ".") == 0;
}

// "NAME.tmp.PID": a file that a killed run had not finished (base/file.h, safetensors_writer.h).
bool is_leftover(const std::string& name) {
  const std::string_view mark = ".tmp.";
  const std::size_t at = name.rfind(mark);
  return at != std::string::npos && at + mark.size() < name.size() &&
         name.find_first_not_of("0123456789", at + mark.size()) == std::string::npos;
}

// In a folder that belongs to this conversion alone, sub-folders of side files included.
void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (is_leftover(at->path().filename().string())) found.push_back(at->path());
  for (const fs::path& path : found) fs::remove(path, error);
}

}  // namespace

Journal::Journal(Journal&& other) noexcept
    : folder_(std::move(other.folder_)),
      identity_(std::move(other.identity_)),
      lock_(std::exchange(other.lock_, -1)),
      shards_(std::move(other.shards_)) {}

Journal& Journal::operator=(Journal&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(identity_, other.identity_);
  std::swap(lock_, other.lock_);
  std::swap(shards_, other.shards_);
  return *this;
}

Journal::~Journal() {
  if (lock_ >= 0) ::close(lock_);  // closing releases the flock
}

Result<Journal> Journal::open(const fs::path& folder, const std::string& identity) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    Error failure = errno_error(error.value(), "create", folder);
    failure.code = ErrorCode::kCannotCreate;
    return fail(std::move(failure));
  }
  const fs::path lock_path = folder / kLockName;
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) {
    Error failure = errno_error(errno, "create", lock_path);
    failure.code = ErrorCode::kCannotCreate;
    return fail(std::move(failure));
  }
  Journal journal(folder, identity, lock);
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kUnavailable,
                "another conversion is writing to {}; wait for it, or choose another folder",
                folder.string());
  const auto text = read_file(folder / kJournalName, std::size_t{1} << 26);
  if (!text) {
    if (text.error().code != ErrorCode::kNotFound) return fail(text.error());
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      if (is_own(at->path().filename().string())) continue;
      std::error_code ignored;
      fs::remove(lock_path, ignored);
      return fail(
          ErrorCode::kInvalidArgument,
          "{} is not empty ({} is in it) and no conversion was begun there; choose an empty or new folder",
          folder.string(), at->path().filename().string());
    }
    remove_leftovers(folder);
    PIVOT_TRY_VOID(journal.save());
    return journal;
  }
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object() || json.value("identity", "") != identity || !json.contains("shards") ||
      !json["shards"].is_object())
    return fail(ErrorCode::kInvalidArgument,
                "{} holds the unfinished conversion of another source or to another format; finish that one, "
                "or delete the folder",
                folder.string());
  for (const auto& [shard, bytes] : json["shards"].items())
    if (bytes.is_number_unsigned()) journal.shards_[shard] = bytes.get<std::uint64_t>();
  remove_leftovers(folder);
  return journal;
}

bool Journal::finished(const std::string& shard) const {
  const auto found = shards_.find(shard);
  if (found == shards_.end()) return false;
  std::error_code error;
  return fs::file_size(folder_ / shard, error) == found->second && !error;
}

Result<> Journal::add(const std::string& shard, std::uint64_t file_bytes) {
  shards_[shard] = file_bytes;
  return save();
}

Result<> Journal::save() const {
  nlohmann::ordered_json json;
  json["what"] =
      "an unfinished conversion by pivot; run the same command again to resume, or delete this folder";
  json["identity"] = identity_;
  json["shards"] = nlohmann::ordered_json::object();
  for (const auto& [shard, bytes] : shards_) json["shards"][shard] = bytes;
  return write_file(folder_ / kJournalName,
                    json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

Result<> Journal::close() {
  std::error_code error;
  fs::remove(folder_ / kJournalName, error);
  if (error) return fail(errno_error(error.value(), "remove", folder_ / kJournalName));
  fs::remove(folder_ / kLockName, error);
  return {};
}

}  // namespace pivot
