// Writes one file from front to back, past the page cache where the file system allows it.
//
// A checkpoint is larger than memory: through the page cache its bytes would be copied once more and push out
// what others use. The caller owns the name: nothing is renamed or removed here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/error.h"

namespace pivot {

class SequentialFile {
 public:
  // Creates or truncates `path`. Errors carry kCannotCreate.
  static Result<SequentialFile> create(const std::filesystem::path& path);
  SequentialFile(SequentialFile&& other) noexcept;
  SequentialFile& operator=(SequentialFile&& other) noexcept;
  ~SequentialFile();  // closes; bytes still in the buffer are lost unless finish() was called

  Result<> append(std::span<const std::byte> bytes);
  // Writes what is buffered and waits until the device has everything.
  Result<> finish();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  SequentialFile() = default;
  Result<> write_all(const std::byte* data, std::size_t size);

  std::filesystem::path path_;
  int fd_ = -1;
  std::unique_ptr<std::byte, Free> buffer_;
  std::size_t filled_ = 0;
};

}  // namespace pivot
