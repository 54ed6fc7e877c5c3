#include "cache/prefix_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "pfx1";
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 40;

// What a file's name says: "pfx1-KEY-BLOCK_KEY-PARENT_KEY-POSITION-PARENT_POSITION".
struct Name {
  PrefixKey key;        // of ids[0, position)
  PrefixKey block_key;  // of the whole blocks in it; equal to key at a multiple of the block
  PrefixKey parent_key;
  std::int64_t position = 0;
  std::int64_t parent_position = 0;

  std::string to_string() const {
    return fmt::format("{}-{}-{}-{}-{}-{}", kPrefix, key.to_string(), block_key.to_string(),
                       parent_key.to_string(), position, parent_position);
  }
};

std::optional<Name> parse_name(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('-', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (parts.size() != 6 || parts[0] != kPrefix) return std::nullopt;
  Name name;
  const auto number = [](std::string_view digits, auto& value, int base) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    return error == std::errc{} && end == digits.data() + digits.size() && !digits.empty();
  };
  const auto key = [&](std::string_view digits, PrefixKey& value) {
    return digits.size() == 32 && number(digits.substr(0, 16), value.high, 16) &&
           number(digits.substr(16), value.low, 16);
  };
  if (!key(parts[1], name.key) || !key(parts[2], name.block_key) || !key(parts[3], name.parent_key) ||
      !number(parts[4], name.position, 10) || !number(parts[5], name.parent_position, 10) ||
      name.position <= 0 || name.parent_position < 0 || name.parent_position > name.position)
    return std::nullopt;
  return name;
}

struct Entry {
  Name name;
  std::int64_t bytes = 0;
  std::int32_t children = 0;
  std::list<PrefixKey>::iterator order;
};

struct Waiting {
  Name name;
  PrefixFile file;
};

// Keys of ids at every multiple of the block: keys[b] is of the first b blocks.
std::vector<PrefixKey> block_keys(const PrefixKey& root, std::span<const TokenId> ids, std::int64_t block) {
  std::vector<PrefixKey> keys = {root};
  for (std::int64_t at = 0; at + block <= std::ssize(ids); at += block)
    keys.push_back(
        extend_key(keys.back(), ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(block))));
  return keys;
}

}  // namespace

struct PrefixStore::State {
  PrefixStoreOptions options;
  CacheLayout layout;
  PrefixKey root;
  int lock_fd = -1;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<PrefixKey, Entry, PrefixKeyHash> entries;
  // Entries between multiples of the block, by the key of their whole blocks.
  std::unordered_map<PrefixKey, std::vector<Name>, PrefixKeyHash> tails;
  std::list<PrefixKey> order;  // most recently used first
  std::deque<Waiting> waiting;
  std::unordered_set<PrefixKey, PrefixKeyHash> pending;  // waiting or being written
  PrefixStoreStats stats;
  bool stopping = false;
  std::thread writer;

  std::int64_t block() const { return layout.options.block_tokens; }
  fs::path path_of(const Name& name) const { return options.folder / name.to_string(); }

  // All of these with the mutex held.
  void add(const Name& name, std::int64_t bytes) {
    order.push_front(name.key);
    entries[name.key] = {name, bytes, 0, order.begin()};
    if (!(name.key == name.block_key)) tails[name.block_key].push_back(name);
    if (const auto parent = entries.find(name.parent_key);
        name.parent_position > 0 && parent != entries.end())
      ++parent->second.children;
    stats.entries = static_cast<std::int64_t>(entries.size());
    stats.bytes += bytes;
  }
  // Removes an entry, what builds on it, and the files.
  void drop(const PrefixKey& key) {
    const auto found = entries.find(key);
    if (found == entries.end()) return;
    const Entry entry = found->second;
    if (entry.children > 0) {
      std::vector<PrefixKey> below;
      for (const auto& [other, e] : entries)
        if (e.name.parent_position > 0 && e.name.parent_key == key) below.push_back(other);
      for (const PrefixKey& child : below) drop(child);
    }
    if (const auto parent = entries.find(entry.name.parent_key);
        entry.name.parent_position > 0 && parent != entries.end())
      --parent->second.children;
    if (const auto tail = tails.find(entry.name.block_key); tail != tails.end()) {
      std::erase_if(tail->second, [&](const Name& name) { return name.key == key; });
      if (tail->second.empty()) tails.erase(tail);
    }
    std::error_code ignored;
    fs::remove(path_of(entry.name), ignored);
    order.erase(entry.order);
    entries.erase(key);
    stats.entries = static_cast<std::int64_t>(entries.size());
    stats.bytes -= entry.bytes;
  }
  void make_room() {
    while (stats.bytes > options.max_bytes && !order.empty()) {
      // The least recently used one that nothing builds on.
      const auto victim = std::find_if(order.rbegin(), order.rend(),
                                       [&](const PrefixKey& key) { return entries.at(key).children == 0; });
      if (victim == order.rend()) return;
      const PrefixKey key = *victim;
      drop(key);
      ++stats.evictions;
    }
  }

  Result<> read_folder();
  void write_all();
};

Result<> PrefixStore::State::read_folder() {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) return fail(errno_error(error.value(), "create", options.folder));
  const fs::path lock = options.folder / "lock";
  lock_fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd < 0) return fail(errno_error(errno, "open", lock));
  if (::flock(lock_fd, LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kUnavailable,
                "the disk cache {} is in use by another process; give each server a folder of its own",
                options.folder.string());

  struct Found {
    Name name;
    std::int64_t bytes;
    fs::file_time_type used;
  };
  std::vector<Found> found;
  for (auto it = fs::directory_iterator(options.folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string file = it->path().filename().string();
    std::error_code ignored;
    if (!file.starts_with(kPrefix)) continue;
    if (file.find(".tmp.") != std::string::npos) {  // a write that was cut off
      fs::remove(it->path(), ignored);
      continue;
    }
    const std::optional<Name> name = parse_name(file);
    if (!name) continue;
    const auto bytes = static_cast<std::int64_t>(it->file_size(ignored));
    found.push_back({*name, bytes, it->last_write_time(ignored)});
  }
  if (error) return fail(errno_error(error.value(), "read", options.folder));
  // Parents before children, then by use: add() counts children, and pushes the latest to the front.
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.used != b.used ? a.used < b.used : a.name.position < b.name.position;
  });
  for (const Found& f : found) add(f.name, f.bytes);
  for (auto& [key, entry] : entries) entry.children = 0;
  std::vector<PrefixKey> orphans;
  for (auto& [key, entry] : entries) {
    if (entry.name.parent_position == 0) continue;
    const auto parent = entries.find(entry.name.parent_key);
    if (parent == entries.end())
      orphans.push_back(key);
    else
      ++parent->second.children;
  }
  for (const PrefixKey& key : orphans) drop(key);
  make_room();
  return {};
}

void PrefixStore::State::write_all() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return stopping || !waiting.empty(); });
    if (waiting.empty()) return;
    const Waiting next = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    const std::string bytes = encode_prefix_file(next.file);
    Result<> written = write_file(path_of(next.name), bytes);
    lock.lock();
    pending.erase(next.name.key);
    const bool fits = static_cast<std::int64_t>(bytes.size()) <= options.max_bytes;
    if (!written) {
      ++stats.write_failures;
      spdlog::warn("the disk cache could not write an entry: {}", written.error().to_string());
    } else if (!fits || (next.name.parent_position > 0 && !entries.contains(next.name.parent_key))) {
      // Too large for the limit, or its parent is gone by now: of no use.
      std::error_code ignored;
      fs::remove(path_of(next.name), ignored);
      ++stats.write_failures;
    } else {
      ++stats.writes;
      add(next.name, static_cast<std::int64_t>(bytes.size()));
      make_room();
    }
    changed.notify_all();
  }
}

PrefixStore::PrefixStore(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<PrefixStore>> PrefixStore::open(const PrefixStoreOptions& options,
                                                       const CacheLayout& layout) {
  auto state = std::make_unique<State>();
  state->options = options;
  state->layout = layout;
  state->root = root_key(options.checkpoint_fingerprint, layout.state_hash);
  if (Result<> read = state->read_folder(); !read) {
    if (state->lock_fd >= 0) ::close(state->lock_fd);
    return fail(std::move(read).error().with("opening the disk cache"));
  }
  state->writer = std::thread([raw_state = state.get()] { raw_state->write_all(); });
  return std::unique_ptr<PrefixStore>(new PrefixStore(std::move(state)));
}

PrefixStore::~PrefixStore() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->writer.join();
  ::close(state_->lock_fd);
}

std::int64_t PrefixStore::find(std::span<const TokenId> ids) const {
  const State& s = *state_;
  const std::vector<PrefixKey> keys = block_keys(s.root, ids, s.block());
  const auto size = static_cast<std::int64_t>(ids.size());
  const std::lock_guard lock(s.mutex);
  for (std::size_t b = keys.size(); b-- > 0;) {
    const std::int64_t at = static_cast<std::int64_t>(b) * s.block();
    std::int64_t best = 0;
    if (const auto tails = s.tails.find(keys[b]); tails != s.tails.end()) {
      for (const Name& name : tails->second) {
        if (name.position <= best || name.position >= size) continue;
        const auto tail =
            ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(name.position - at));
        if (extend_key(keys[b], tail) == name.key) best = name.position;
      }
    }
    if (best > 0) return best;
    if (b > 0 && at < size && s.entries.contains(keys[b])) return at;
  }
  return 0;
}

namespace {

PrefixKey key_at(const std::vector<PrefixKey>& keys, std::span<const TokenId> ids, std::int64_t position,
                 std::int64_t block) {
  const auto whole = static_cast<std::size_t>(position / block);
  const auto tail = static_cast<std::size_t>(position % block);
  if (tail == 0) return keys[whole];
  return extend_key(keys[whole], ids.subspan(whole * static_cast<std::size_t>(block), tail));
}

}  // namespace

bool PrefixStore::contains(std::span<const TokenId> ids) const {
  const State& s = *state_;
  const std::vector<PrefixKey> keys = block_keys(s.root, ids, s.block());
  const PrefixKey key = key_at(keys, ids, std::ssize(ids), s.block());
  const std::lock_guard lock(s.mutex);
  return s.entries.contains(key) || s.pending.contains(key);
}

std::int64_t PrefixStore::parent_of(std::span<const TokenId> ids) const {
  const State& s = *state_;
  const std::vector<PrefixKey> keys = block_keys(s.root, ids, s.block());
  const std::lock_guard lock(s.mutex);
  for (std::size_t b = keys.size(); b-- > 1;) {
    const std::int64_t at = static_cast<std::int64_t>(b) * s.block();
    if (at < std::ssize(ids) && (s.entries.contains(keys[b]) || s.pending.contains(keys[b]))) return at;
  }
  return 0;
}

std::optional<Snapshot> PrefixStore::load(std::span<const TokenId> ids, std::int64_t position) {
  State& s = *state_;
  const std::vector<PrefixKey> keys = block_keys(s.root, ids, s.block());
  std::vector<Name> names;  // leaf first
  {
    const std::lock_guard lock(s.mutex);
    for (std::int64_t at = position; at > 0;) {
      const auto found = s.entries.find(key_at(keys, ids, at, s.block()));
      if (found == s.entries.end()) return std::nullopt;
      names.push_back(found->second.name);
      at = found->second.name.parent_position;
    }
    // Parents before children, so that the latter are the more recent.
    for (auto name = names.rbegin(); name != names.rend(); ++name)
      s.order.splice(s.order.begin(), s.order, s.entries.at(name->key).order);
  }
  std::vector<PrefixFile> chain;
  const auto give_up = [&](const Name& name, const Error& error) -> std::optional<Snapshot> {
    const std::lock_guard lock(s.mutex);
    if (error.code == ErrorCode::kInvalidData) {
      ++s.stats.damaged;
      spdlog::warn("the disk cache dropped an entry: {}", error.to_string());
    }
    s.drop(name.key);
    return std::nullopt;
  };
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const fs::path path = s.path_of(*name);
    const Result<std::string> text = read_file(path, kMaxFileBytes);
    if (!text) return give_up(*name, text.error());
    Result<PrefixFile> file = decode_prefix_file(std::as_bytes(std::span(*text)));
    if (!file) return give_up(*name, file.error());
    const std::span<const TokenId> wanted =
        ids.subspan(static_cast<std::size_t>(name->parent_position),
                    static_cast<std::size_t>(name->position - name->parent_position));
    if (file->position != name->position || file->parent_position != name->parent_position ||
        !std::equal(file->state.tokens.begin(), file->state.tokens.end(), wanted.begin(), wanted.end()))
      return give_up(*name, Error{ErrorCode::kInvalidData, "its tokens are not those of its name", {}});
    std::error_code ignored;
    fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
    chain.push_back(*std::move(file));
  }
  Result<Snapshot> snapshot = join_prefix_files(s.layout, chain);
  if (!snapshot) return give_up(names.front(), snapshot.error());
  return *std::move(snapshot);
}

bool PrefixStore::accepts() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int32_t>(state_->waiting.size()) < state_->options.max_pending;
}

bool PrefixStore::write(std::span<const TokenId> ids, PrefixFile file) {
  State& s = *state_;
  PIVOT_CHECK(std::ssize(ids) == file.position && file.parent_position % s.block() == 0, "{} ids, {} to {}",
              ids.size(), file.parent_position, file.position);
  const std::vector<PrefixKey> keys = block_keys(s.root, ids, s.block());
  Name name;
  name.key = key_at(keys, ids, file.position, s.block());
  name.block_key = keys.back();
  name.position = file.position;
  name.parent_position = file.parent_position;
  if (file.parent_position > 0) name.parent_key = key_at(keys, ids, file.parent_position, s.block());
  const std::lock_guard lock(s.mutex);
  if (s.entries.contains(name.key) || s.pending.contains(name.key)) return false;
  if (static_cast<std::int32_t>(s.waiting.size()) >= s.options.max_pending) {
    ++s.stats.skipped_writes;
    return false;
  }
  s.pending.insert(name.key);
  s.waiting.push_back({name, std::move(file)});
  s.changed.notify_all();
  return true;
}

void PrefixStore::flush() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->pending.empty(); });
}

PrefixStoreStats PrefixStore::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace pivot
