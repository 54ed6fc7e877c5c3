#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace pivot {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace

Error errno_error(int error_number, std::string_view action, const std::filesystem::path& path) {
  ErrorCode code = ErrorCode::kIo;
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      code = ErrorCode::kNotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = ErrorCode::kPermission;
      break;
    case ENOSPC:
    case EDQUOT:
      code = ErrorCode::kCannotCreate;
      break;
    case ELOOP:
      code = ErrorCode::kInvalidData;
      break;
    default:
      break;
  }
  return Error{code, fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(error_number)), {}};
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return fail(errno_error(errno, "open", path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail(errno_error(errno, "inspect", path));
  if (!S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kInvalidData, "{} is not a regular file; a checkpoint file was wanted",
                path.string());
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<std::size_t>(info.st_size);
  if (file.size_ > 0) {
    void* address = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (address == MAP_FAILED) {
      file.size_ = 0;
      return fail(errno_error(errno, "map", path));
    }
    file.data_ = static_cast<const std::byte*>(address);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::size_t offset, std::size_t length) const {
  if (data_ == nullptr || length == 0) return;
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;  // only whole pages inside the range
  const std::size_t end = (offset + length) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return fail(errno_error(errno, "open", path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail(errno_error(errno, "inspect", path));
  if (S_ISDIR(info.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, "{} is a folder; a file was wanted", path.string());
  }
  std::string contents;
  std::string chunk(std::size_t{1} << 20, '\0');
  while (true) {
    const ssize_t count = ::read(fd.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(errno_error(errno, "read", path));
    if (count == 0) return contents;
    if (contents.size() + static_cast<std::size_t>(count) > max_bytes) {
      return fail(ErrorCode::kInvalidData, "{} is larger than the {} bytes allowed for it", path.string(),
                  max_bytes);
    }
    contents.append(chunk.data(), static_cast<std::size_t>(count));
  }
}

Result<> write_file(const std::filesystem::path& path, std::string_view contents) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp.{}", ::getpid());
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) {
    Error error = errno_error(errno, "create", path);
    error.code = ErrorCode::kCannotCreate;
    return fail(std::move(error));
  }
  auto abandon = [&](std::string_view action) -> Result<> {
    Error error = errno_error(errno, action, path);
    ::unlink(temporary.c_str());
    error.code = ErrorCode::kCannotCreate;
    return fail(std::move(error));
  };
  std::size_t written = 0;
  while (written < contents.size()) {
    const ssize_t count = ::write(fd.get(), contents.data() + written, contents.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return abandon("write");
    written += static_cast<std::size_t>(count);
  }
  if (::fsync(fd.get()) != 0) return abandon("flush");
  if (::close(fd.release()) != 0) return abandon("close");
  if (::rename(temporary.c_str(), path.c_str()) != 0) return abandon("rename into place");
  return {};
}

}  // namespace pivot
