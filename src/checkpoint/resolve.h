// From what the user typed to a folder on disk: a path, or ORG/NAME[@revision] in the Hugging Face cache.
// Read-only: nothing is ever downloaded.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pivot {

// Where the Hugging Face cache is: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub.
struct HubEnvironment {
  std::optional<std::string> hf_hub_cache;
  std::optional<std::string> hf_home;
  std::optional<std::string> home;

  static HubEnvironment from_process();
  std::filesystem::path cache_root() const;
};

// Accepts a folder with a checkpoint, a cache entry (models--ORG--NAME, one of its snapshots), a .safetensors
// file, or ORG/NAME[@revision] where revision is a ref ("main") or a commit (at least 7 of its digits). An
// existing path wins over a name. The error lists where it looked.
Result<std::filesystem::path> resolve_checkpoint(
    std::string_view path_or_name, const HubEnvironment& environment = HubEnvironment::from_process());

}  // namespace pivot
