#include "base/installation.h"

#include <cerrno>

#include "base/file.h"

namespace pivot {

namespace fs = std::filesystem;

Result<fs::path> embedded_model_dir(const fs::path& executable_dir) {
  const fs::path folder = (executable_dir / ".." / "share" / "pivot" / "needle").lexically_normal();
  std::error_code error;
  if (!fs::exists(folder / "config.json", error)) {
    return fail(ErrorCode::kNotFound,
                "the embedded model should be in {} and is not there; build it with `cmake --build BUILD_DIR "
                "--target needle_model`, or give the path of a checkpoint folder instead of '{}'",
                folder.string(), kEmbeddedModelName);
  }
  return folder;
}

Result<fs::path> embedded_model_dir() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) return fail(errno_error(error.value(), "find the running executable through", "/proc/self/exe"));
  return embedded_model_dir(executable.parent_path());
}

Result<fs::path> resolve_model_argument(std::string_view model) {
  if (model == kEmbeddedModelName) return embedded_model_dir();
  return fs::path(model);
}

}  // namespace pivot
