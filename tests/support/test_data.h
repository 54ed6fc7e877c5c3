// Where tests find the data that lies beside the repository (goldens, real headers, tokenizer ...).
//
// PIVOT_TEST_DATA names the folder; the default is ../shared seen from the repository. A test that needs it
// starts with
//   PIVOT_NEED_DATA(folder, "goldens/native");
// which defines `folder` or skips, printing what was missing and how to provide it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string_view>

namespace pivot::test {

// The repository's root folder.
std::filesystem::path source_dir();
// Full path of a file or folder of the test data; nullopt where it does not exist.
std::optional<std::filesystem::path> find_data(std::string_view relative);
// A fresh empty folder under the build's temporary directory, removed when the process ends.
std::filesystem::path scratch_dir();

}  // namespace pivot::test

#define PIVOT_NEED_DATA(name, relative)                                                                 \
  const auto name##_found = ::pivot::test::find_data(relative);                                         \
  if (!name##_found) {                                                                                  \
    GTEST_SKIP() << "NEEDS DATA: " << (relative) << " is not there. Set PIVOT_TEST_DATA to the folder " \
                 << "that holds it (default: ../shared beside the repository).";                        \
  }                                                                                                     \
  const std::filesystem::path& name = *name##_found
