#include "support/test_data.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <vector>

namespace pivot::test {

std::filesystem::path source_dir() { return PIVOT_SOURCE_DIR; }

std::optional<std::filesystem::path> find_data(std::string_view relative) {
  const char* variable = std::getenv("PIVOT_TEST_DATA");
  const std::filesystem::path root = variable != nullptr && *variable != '\0'
                                         ? std::filesystem::path(variable)
                                         : source_dir().parent_path() / "shared";
  std::filesystem::path path = root / relative;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return path;
}

namespace {

struct ScratchFolders {
  std::vector<std::filesystem::path> folders;
  ~ScratchFolders() {
    std::error_code error;
    for (const auto& folder : folders) std::filesystem::remove_all(folder, error);
  }
};

}  // namespace

std::filesystem::path scratch_dir() {
  static ScratchFolders made;
  static std::atomic<int> next{0};
  auto folder = std::filesystem::temp_directory_path() /
                ("pivot-test-" + std::to_string(::getpid()) + "-" + std::to_string(next++));
  std::filesystem::create_directories(folder);
  made.folders.push_back(folder);
  return folder;
}

}  // namespace pivot::test
