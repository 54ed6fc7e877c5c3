// Digests for the tests, by the sha256sum program that every Debian has.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "support/test_data.h"

namespace pivot::test {

inline std::string sha256(std::string_view bytes) {
  const auto path = scratch_dir() / "digest";
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  FILE* pipe = ::popen(("sha256sum " + path.string()).c_str(), "r");
  if (pipe == nullptr) return "";
  std::array<char, 65> digest{};
  const std::size_t read = std::fread(digest.data(), 1, 64, pipe);
  ::pclose(pipe);
  return std::string(digest.data(), read);
}

}  // namespace pivot::test
