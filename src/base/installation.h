// Where the files that come with the program lie, found from the running executable.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace pivot {

// The MODEL argument that means "the small model that comes with pivot".
inline constexpr std::string_view kEmbeddedModelName = "embedded";
// The MODEL argument that means "the small model whose answers need many entries at once" (models/tally).
inline constexpr std::string_view kTallyModelName = "tally";
// Whether a MODEL argument names one of them: they were trained on the sentences of the wording `needle`.
inline bool comes_with_pivot(std::string_view model) {
  return model == kEmbeddedModelName || model == kTallyModelName;
}

// The folder of the embedded model's checkpoint: ../share/pivot/needle seen from `executable_dir`. An
// installation (PREFIX/bin, PREFIX/share) and a build tree (build/release/bin, build/release/share) have the
// same shape. kNotFound where the folder or its config.json is missing.
Result<std::filesystem::path> embedded_model_dir(const std::filesystem::path& executable_dir);

// The same, for the running executable (/proc/self/exe).
Result<std::filesystem::path> embedded_model_dir();

// A file of ../share/pivot seen from the running executable, such as "texts/hebrews.txt". kNotFound where it
// is missing.
Result<std::filesystem::path> shared_file(std::string_view relative);

// A MODEL argument as a path: `embedded` becomes embedded_model_dir(), `tally` the folder of the other model
// that comes with pivot (kNotFound where it is missing), anything else is returned as it is.
Result<std::filesystem::path> resolve_model_argument(std::string_view model);

}  // namespace pivot
