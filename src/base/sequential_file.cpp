#include "base/sequential_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
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

}  // namespace

void SequentialFile::Free::operator()(std::byte* memory) const { std::free(memory); }

SequentialFile::SequentialFile(SequentialFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      buffer_(std::move(other.buffer_)),
      filled_(std::exchange(other.filled_, 0)) {}

SequentialFile& SequentialFile::operator=(SequentialFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(buffer_, other.buffer_);
  std::swap(filled_, other.filled_);
  return *this;
}

SequentialFile::~SequentialFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<SequentialFile> SequentialFile::create(const std::filesystem::path& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  SequentialFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), kFlags | O_DIRECT, 0644);
  if (file.fd_ < 0 && errno == EINVAL) file.fd_ = ::open(path.c_str(), kFlags, 0644);
  if (file.fd_ < 0) return fail(cannot_write("create", path));
  file.buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, kBufferBytes)));
  if (file.buffer_ == nullptr)
    return fail(ErrorCode::kOutOfMemory, "no memory for a write buffer of {} bytes; free some and try again",
                kBufferBytes);
  return file;
}

Result<> SequentialFile::write_all(const std::byte* data, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::write(fd_, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL) {
      // A direct write that is refused here (the unaligned tail, or a file system that only pretends): go
      // through the cache.
      const int flags = ::fcntl(fd_, F_GETFL);
      if ((flags & O_DIRECT) != 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0) continue;
      errno = EINVAL;
    }
    if (count < 0) return fail(cannot_write("write", path_));
    data += count;
    size -= static_cast<std::size_t>(count);
  }
  return {};
}

Result<> SequentialFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBufferBytes - filled_);
    std::memcpy(buffer_.get() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ < kBufferBytes) break;
    PIVOT_TRY_VOID(write_all(buffer_.get(), filled_));
    filled_ = 0;
  }
  return {};
}

Result<> SequentialFile::finish() {
  const std::size_t whole = filled_ / kBlock * kBlock;
  PIVOT_TRY_VOID(write_all(buffer_.get(), whole));
  PIVOT_TRY_VOID(write_all(buffer_.get() + whole, filled_ - whole));
  filled_ = 0;
  if (::fsync(fd_) != 0) return fail(cannot_write("flush", path_));
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) return fail(cannot_write("close", path_));
  return {};
}

}  // namespace pivot
