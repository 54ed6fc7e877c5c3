#include "base/installation.h"

#include <cerrno>

#include "base/file.h"

namespace pivot {

namespace fs = std::filesystem;

namespace {

Result<fs::path> running_executable_dir() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) return fail(errno_error(error.value(), "find the running executable through", "/proc/self/exe"));
  return executable.parent_path();
}

// ../share/pivot/FOLDER seen from the executable, where a checkpoint lies there.
Result<fs::path> shipped_model_dir(const fs::path& executable_dir, std::string_view folder,
                                   std::string_view argument) {
  fs::path found = (executable_dir / ".." / "share" / "pivot" / folder).lexically_normal();
  std::error_code error;
  if (!fs::exists(found / "config.json", error)) {
    return fail(ErrorCode::kNotFound,
                "the model '{}' should be in {} and is not there; build it with `cmake --build BUILD_DIR "
                "--target {}_model`, or give the path of a checkpoint folder instead of '{}'",
                argument, found.string(), folder, argument);
  }
  return found;
}

}  // namespace

Result<fs::path> embedded_model_dir(const fs::path& executable_dir) {
  return shipped_model_dir(executable_dir, "needle", kEmbeddedModelName);
}

Result<fs::path> embedded_model_dir() {
  PIVOT_TRY(const fs::path folder, running_executable_dir());
  return embedded_model_dir(folder);
}

Result<fs::path> shared_file(std::string_view relative) {
  PIVOT_TRY(const fs::path folder, running_executable_dir());
  const fs::path file = (folder / ".." / "share" / "pivot" / relative).lexically_normal();
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    return fail(ErrorCode::kNotFound,
                "{} should have been installed with pivot and is not there; build or install again",
                file.string());
  }
  return file;
}

Result<fs::path> resolve_model_argument(std::string_view model) {
  if (model == kEmbeddedModelName) return embedded_model_dir();
  if (model == kTallyModelName) {
    PIVOT_TRY(const fs::path folder, running_executable_dir());
    return shipped_model_dir(folder, "tally", kTallyModelName);
  }
  return fs::path(model);
}

}  // namespace pivot
