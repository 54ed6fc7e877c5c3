// What the user pointed at: a checkpoint with data, headers without data, or a config alone. Opening never
// gives up on the first fault: what could be read is there, and what is wrong is listed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace pivot {

class Subject {
 public:
  // Takes what Checkpoint::open takes, and besides: a header dump ({"file": {header}}, plain or gzip), a
  // folder with only a config.json, and a broken checkpoint folder. `config` names a config.json for a dump
  // that has none beside it. Fails only where there is nothing to look at: no such path, no permission, not a
  // checkpoint of any kind.
  static Result<Subject> open(std::string_view path_or_name,
                              const std::optional<std::filesystem::path>& config = std::nullopt);

  const std::string& label() const { return label_; }
  const std::filesystem::path& path() const { return path_; }  // the folder, or the dump file
  // Set where every shard and the index are sound.
  const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }
  // All tensors of a sound checkpoint or dump; those of the sound shards of a broken one; empty for a config
  // alone.
  const TensorTable& table() const { return checkpoint_ ? checkpoint_->table() : headers_; }
  bool has_headers() const { return table().size() > 0; }
  const std::optional<std::string>& config_text() const { return config_text_; }
  const std::optional<std::string>& hf_quant_text() const { return hf_quant_text_; }
  std::optional<std::uint64_t> index_total_size() const { return index_total_size_; }
  // What is wrong with the files: empty for a sound subject.
  const std::vector<std::string>& problems() const { return problems_; }
  // Signs that something is still writing here: names of partial files, shards that changed in the last
  // seconds.
  const std::vector<std::string>& being_written() const { return being_written_; }

 private:
  Result<> open_dump(const std::optional<std::filesystem::path>& config);
  Result<> open_folder();
  void salvage_headers();

  std::string label_;
  std::filesystem::path path_;
  std::optional<Checkpoint> checkpoint_;
  TensorTable headers_;
  std::optional<std::string> config_text_;
  std::optional<std::string> hf_quant_text_;
  std::optional<std::uint64_t> index_total_size_;
  std::vector<std::string> problems_;
  std::vector<std::string> being_written_;
};

// The folders inside `folder` that look like checkpoints: direct children with a config.json or safetensors
// files, and the snapshots of Hugging Face cache entries (models--ORG--NAME). Sorted; symlink loops and
// unreadable entries are skipped.
std::vector<std::filesystem::path> find_checkpoints(const std::filesystem::path& folder);
// A config.json, an index or a safetensors file lies directly in `folder`.
bool looks_like_checkpoint(const std::filesystem::path& folder);

}  // namespace pivot
