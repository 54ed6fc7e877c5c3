#include "base/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace pivot {

namespace {

// Direct reads want offsets, lengths and buffers at multiples of the device's block; 4096 suits every device
// in use.
constexpr std::uint64_t kBlock = 4096;

struct AlignedFree {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte, AlignedFree>;

// Two requests under way keep a device busy between one read and the next.
constexpr int kReaders = 2;

// Small ranges go through the page cache, where neighbours come along; large ones past it.
constexpr std::uint64_t kDirectBytes = std::uint64_t{128} << 10;

struct File {
  std::filesystem::path path;
  int direct = -1;  // the same as `buffered` where the file system has no direct reads
  int buffered = -1;
};

struct Slot {
  Buffer memory;
  std::size_t capacity = 0;
  bool busy = false;   // being read or in a worker's hands
  bool ready = false;  // read, waiting for a worker
  std::size_t job = 0;
  std::vector<std::span<const std::byte>> ranges;
};

std::uint64_t aligned_begin(const ReadRange& range) { return range.offset / kBlock * kBlock; }
std::uint64_t aligned_bytes(const ReadRange& range) {
  return (range.offset + range.bytes + kBlock - 1) / kBlock * kBlock - aligned_begin(range);
}

// Reads until `want` bytes or the end of the file; the number read, or -1 with errno set.
std::int64_t read_fully(int fd, std::byte* buffer, std::uint64_t want, std::uint64_t offset) {
  std::uint64_t done = 0;
  while (done < want) {
    const ssize_t got = ::pread(fd, buffer + done, want - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
    // The tail of a file is short; asking on from an unaligned position would fail.
    if (done % kBlock != 0) break;
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace

struct ReadAhead::State {
  std::vector<File> files;
  std::vector<ReadJob> jobs;
  std::vector<Slot> slots;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t next_to_read = 0;  // jobs that a reader took
  std::size_t handed_out = 0;    // jobs given to workers
  bool stopped = false;
  int reading = 0;  // readers at work
  std::optional<Error> error;
  std::vector<std::thread> readers;

  ~State() {
    for (const File& file : files) {
      if (file.direct >= 0 && file.direct != file.buffered) ::close(file.direct);
      if (file.buffered >= 0) ::close(file.buffered);
    }
  }
  Result<> read_job(const ReadJob& job, Slot& slot);
};

Result<> ReadAhead::State::read_job(const ReadJob& job, Slot& slot) {
  std::uint64_t total = 0;
  for (const ReadRange& range : job.ranges) total += aligned_bytes(range);
  if (total > slot.capacity) {
    slot.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, total)));
    slot.capacity = slot.memory == nullptr ? 0 : total;
    if (slot.memory == nullptr)
      return fail(ErrorCode::kOutOfMemory, "no memory for a read buffer of {} bytes; free some and try again",
                  total);
  }
  slot.ranges.clear();
  std::byte* at = slot.memory.get();
  for (const ReadRange& range : job.ranges) {
    const File& file = files[range.file];
    const std::uint64_t begin = aligned_begin(range);
    const std::uint64_t skip = range.offset - begin;
    const bool direct = range.bytes >= kDirectBytes;
    std::int64_t got = read_fully(direct ? file.direct : file.buffered, at, aligned_bytes(range), begin);
    if (got < 0 && errno == EINVAL && direct) {
      // The file system accepts O_DIRECT at open and refuses it here.
      got = read_fully(file.buffered, at, aligned_bytes(range), begin);
    }
    if (got < 0) return fail(errno_error(errno, "read", file.path));
    if (static_cast<std::uint64_t>(got) < skip + range.bytes)
      return fail(ErrorCode::kIo,
                  "{} ended at byte {} while bytes up to {} were wanted; is something writing to it?",
                  file.path.string(), begin + static_cast<std::uint64_t>(got), range.offset + range.bytes);
    slot.ranges.emplace_back(at + skip, range.bytes);
    at += aligned_bytes(range);
  }
  return {};
}

ReadAhead::Loaded::Loaded(Loaded&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      slot_(other.slot_),
      job_(other.job_),
      ranges_(std::move(other.ranges_)) {}

ReadAhead::Loaded& ReadAhead::Loaded::operator=(Loaded&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(slot_, other.slot_);
  std::swap(job_, other.job_);
  std::swap(ranges_, other.ranges_);
  return *this;
}

ReadAhead::Loaded::~Loaded() {
  if (owner_ == nullptr) return;
  State& state = *owner_->state_;
  {
    const std::lock_guard lock(state.mutex);
    state.slots[slot_].busy = false;
  }
  state.changed.notify_all();
}

ReadAhead::ReadAhead(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<ReadAhead>> ReadAhead::start(const std::vector<std::filesystem::path>& files,
                                                    std::vector<ReadJob> jobs, int depth) {
  PIVOT_CHECK(depth >= 1, "depth {}", depth);
  auto state = std::make_unique<State>();
  for (const auto& path : files) {
    File file{path, -1, ::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.buffered < 0) return fail(errno_error(errno, "open", path));
    file.direct = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file.direct < 0) file.direct = file.buffered;
    state->files.push_back(std::move(file));
  }
  for (const ReadJob& job : jobs)
    for (const ReadRange& range : job.ranges)
      PIVOT_CHECK(range.file < files.size(), "file {} of {}", range.file, files.size());
  state->jobs = std::move(jobs);
  state->slots.resize(static_cast<std::size_t>(depth));
  std::unique_ptr<ReadAhead> reader(new ReadAhead(std::move(state)));
  reader->state_->reading = kReaders;
  for (int r = 0; r < kReaders; ++r)
    reader->state_->readers.emplace_back([raw = reader.get()] { raw->read_jobs(); });
  return reader;
}

void ReadAhead::read_jobs() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  for (;;) {
    // A slot and the next job are taken together: were a job taken first, later ones could fill every slot
    // before it.
    Slot* slot = nullptr;
    state.changed.wait(lock, [&] {
      if (state.stopped || state.error || state.next_to_read == state.jobs.size()) return true;
      const auto free =
          std::find_if(state.slots.begin(), state.slots.end(), [](const Slot& one) { return !one.busy; });
      slot = free == state.slots.end() ? nullptr : &*free;
      return slot != nullptr;
    });
    if (slot == nullptr) break;
    slot->busy = true;
    slot->job = state.next_to_read++;
    lock.unlock();
    auto read = state.read_job(state.jobs[slot->job], *slot);
    lock.lock();
    if (!read) {
      if (!state.error) state.error = std::move(read).error();
      slot->busy = false;
      break;
    }
    slot->ready = true;
    state.changed.notify_all();
  }
  --state.reading;
  state.changed.notify_all();
}

Result<std::optional<ReadAhead::Loaded>> ReadAhead::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  Slot* slot = nullptr;
  state.changed.wait(lock, [&] {
    const auto ready = std::find_if(state.slots.begin(), state.slots.end(), [&](const Slot& one) {
      return one.ready && one.job == state.handed_out;
    });
    slot = ready == state.slots.end() ? nullptr : &*ready;
    return state.stopped || slot != nullptr || state.handed_out >= state.jobs.size() || state.reading == 0;
  });
  if (state.stopped) return std::optional<Loaded>();
  if (slot == nullptr) {
    if (state.error) return fail(*state.error);
    return std::optional<Loaded>();
  }
  slot->ready = false;
  ++state.handed_out;
  Loaded loaded;
  loaded.owner_ = this;
  loaded.slot_ = static_cast<std::size_t>(slot - state.slots.data());
  loaded.job_ = slot->job;
  loaded.ranges_ = slot->ranges;
  state.changed.notify_all();
  return std::optional<Loaded>(std::move(loaded));
}

void ReadAhead::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->changed.notify_all();
}

ReadAhead::~ReadAhead() {
  stop();
  for (std::thread& reader : state_->readers) reader.join();
}

}  // namespace pivot
