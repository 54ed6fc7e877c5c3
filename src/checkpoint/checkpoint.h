// A checkpoint on disk, opened read-only: its texts, its tensor table, and its tensors by mmap.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/resolve.h"
#include "checkpoint/safetensors.h"

namespace pivot {

class Checkpoint {
 public:
  // `path_or_name` as resolve_checkpoint takes it. Every shard's header is validated against its file and
  // against the index, and all problems are reported in one Error (fault B24); no tensor data are read.
  static Result<Checkpoint> open(std::string_view path_or_name,
                                 const HubEnvironment& environment = HubEnvironment::from_process());
  // The same, adding to `problems`; nullopt where any was added.
  static std::optional<Checkpoint> open(std::string_view path_or_name, const HubEnvironment& environment,
                                        Problems& problems);

  const std::filesystem::path& folder() const { return folder_; }
  const TensorTable& table() const { return table_; }
  // The text of config.json and hf_quant_config.json; nullopt where there is no such file.
  const std::optional<std::string>& config_text() const { return config_text_; }
  const std::optional<std::string>& hf_quant_text() const { return hf_quant_text_; }
  // metadata.total_size of the index; informative only (specification 4.3: too small in NVFP4 copies).
  std::optional<std::uint64_t> index_total_size() const { return index_total_size_; }
  std::uint64_t file_bytes() const;  // sum of the shard files' sizes

  // The tensor as it lies in the mapping; valid as long as this Checkpoint or mappings() lives.
  Result<TensorView> view(std::string_view name) const;
  TensorView view(const TensorInfo& tensor) const;
  // One mapping per shard, in the order of table().shards(). Sharing it keeps views alive.
  std::shared_ptr<const std::vector<MappedFile>> mappings() const { return mappings_; }
  // Hands pages that were merely looked at back to the kernel; views stay valid and read them again when
  // used.
  void release_pages() const;
  void release_pages(const TensorInfo& tensor) const;

 private:
  Checkpoint() = default;
  std::filesystem::path folder_;
  TensorTable table_;
  std::optional<std::string> config_text_;
  std::optional<std::string> hf_quant_text_;
  std::optional<std::uint64_t> index_total_size_;
  std::shared_ptr<const std::vector<MappedFile>> mappings_;
};

}  // namespace pivot
