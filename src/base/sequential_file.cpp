#include "base/sequential_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/file.h"

namespace pivot {

namespace {

constexpr std::size_t kBlock = 4096;                        // alignment that direct writes want
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;  // a multiple of it

Error cannot_write(std::string_view action, const std::filesystem::path& path) {
  Error error = errno_error(errno, action, path);
  error.code = ErrorCode::kCannotCreate;
  return error;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

}  // namespace

struct SequentialFile::State {
  std::filesystem::path path;
  int fd = -1;
  std::unique_ptr<std::byte, Free> buffers[2];
  int current = 0;         // buffer that is being filled
  std::size_t filled = 0;  // of it

  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::size_t pending = 0;  // bytes of the other buffer that the thread has to write; 0: it is idle
  bool stopping = false;
  std::optional<Error> error;
  std::thread writer;

  ~State() {
    if (writer.joinable()) {
      {
        const std::lock_guard lock(mutex);
        stopping = true;
      }
      changed.notify_all();
      writer.join();
    }
    if (fd >= 0) ::close(fd);
  }

  Result<> write_all(const std::byte* data, std::size_t size);
  void write_pending();
  Result<> wait_idle();
};

Result<> SequentialFile::State::write_all(const std::byte* data, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::write(fd, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL) {
      // A direct write that is refused here (the unaligned tail, or a file system that only pretends): go
      // through the cache.
      const int flags = ::fcntl(fd, F_GETFL);
      if ((flags & O_DIRECT) != 0 && ::fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0) continue;
      errno = EINVAL;
    }
    if (count < 0) return fail(cannot_write("write", path));
    data += count;
    size -= static_cast<std::size_t>(count);
  }
  return {};
}

void SequentialFile::State::write_pending() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopping || pending > 0; });
    if (stopping) return;
    const std::byte* data = buffers[1 - current].get();
    const std::size_t size = pending;
    lock.unlock();
    auto written = write_all(data, size);
    lock.lock();
    if (!written && !error) error = std::move(written).error();
    pending = 0;
    changed.notify_all();
  }
}

Result<> SequentialFile::State::wait_idle() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return pending == 0; });
  if (error) return fail(*error);
  return {};
}

SequentialFile::SequentialFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
SequentialFile::SequentialFile(SequentialFile&&) noexcept = default;
SequentialFile& SequentialFile::operator=(SequentialFile&&) noexcept = default;
SequentialFile::~SequentialFile() = default;

Result<SequentialFile> SequentialFile::create(const std::filesystem::path& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  auto state = std::make_unique<State>();
  state->path = path;
  state->fd = ::open(path.c_str(), kFlags | O_DIRECT, 0644);
  if (state->fd < 0 && errno == EINVAL) state->fd = ::open(path.c_str(), kFlags, 0644);
  if (state->fd < 0) return fail(cannot_write("create", path));
  for (auto& buffer : state->buffers) {
    buffer.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, kBufferBytes)));
    if (buffer == nullptr)
      return fail(ErrorCode::kOutOfMemory,
                  "no memory for a write buffer of {} bytes; free some and try again", kBufferBytes);
  }
  state->writer = std::thread([raw = state.get()] { raw->write_pending(); });
  return SequentialFile(std::move(state));
}

Result<> SequentialFile::append(std::span<const std::byte> bytes) {
  State& s = *state_;
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBufferBytes - s.filled);
    std::memcpy(s.buffers[s.current].get() + s.filled, bytes.data(), count);
    s.filled += count;
    bytes = bytes.subspan(count);
    if (s.filled < kBufferBytes) break;
    PIVOT_TRY_VOID(s.wait_idle());
    {
      const std::lock_guard lock(s.mutex);
      s.pending = std::exchange(s.filled, 0);
      s.current = 1 - s.current;
    }
    s.changed.notify_all();
  }
  return {};
}

Result<> SequentialFile::finish() {
  State& s = *state_;
  PIVOT_TRY_VOID(s.wait_idle());
  const std::byte* data = s.buffers[s.current].get();
  const std::size_t whole = s.filled / kBlock * kBlock;
  PIVOT_TRY_VOID(s.write_all(data, whole));
  PIVOT_TRY_VOID(s.write_all(data + whole, s.filled - whole));
  s.filled = 0;
  if (::fsync(s.fd) != 0) return fail(cannot_write("flush", s.path));
  const int fd = std::exchange(s.fd, -1);
  if (::close(fd) != 0) return fail(cannot_write("close", s.path));
  return {};
}

}  // namespace pivot
