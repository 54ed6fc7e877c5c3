// Writes one file from front to back, past the page cache where the file system allows it.
//
// A checkpoint is larger than memory: through the page cache its bytes would be copied once more and push out
// what others use. Two buffers alternate: one is filled while a thread writes the other, so a device that
// reads and writes at once does both. The caller owns the name: nothing is renamed or removed here.
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
  struct State;
  explicit SequentialFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pivot
