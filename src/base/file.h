// Files: read-only mapping, whole-file reads, and writes that are either complete or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pivot {

// A read-only memory mapping of a whole file; empty files map to an empty span. Move-only, unmapped on
// destruction.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that these bytes will not be needed again soon (they stay readable).
  void release(std::size_t offset, std::size_t length) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::filesystem::path path_;
};

// Reads a whole file, refusing one larger than max_bytes.
Result<std::string> read_file(const std::filesystem::path& path,
                              std::size_t max_bytes = std::size_t{1} << 30);

// Writes path atomically: a temporary file in the same folder, fsync, rename. On failure nothing is left
// behind.
Result<> write_file(const std::filesystem::path& path, std::string_view contents);

// Turns errno into an Error with the right code: "cannot open PATH: No such file or directory".
Error errno_error(int error_number, std::string_view action, const std::filesystem::path& path);

}  // namespace pivot
