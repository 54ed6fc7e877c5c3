// Reads golden vectors (safetensors) and the weights of a golden checkpoint folder for op-level tests.
//
// A missing name or an unreadable file ends the test binary with a message: goldens are fixed inputs, not
// something a test recovers from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/model_weights.h"
#include "checkpoint/safetensors.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

namespace pivot::test {

class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path);

  bool has(std::string_view name) const { return table_.contains(name); }
  TensorView view(std::string_view name) const;
  // Any numeric dtype, widened; E4M3 and E8M0 codes decode to their values.
  std::vector<float> floats(std::string_view name) const;
  std::vector<double> doubles(std::string_view name) const;
  std::vector<std::int32_t> ints(std::string_view name) const;
  std::vector<std::uint8_t> bytes(std::string_view name) const;

 private:
  MappedFile file_;
  TensorTable table_;
};

// The weights of a checkpoint folder in native or ModelOpt NVFP4 naming, by the names of specification 4.1.
// Keeps everything it handed out alive.
class GoldenWeights {
 public:
  // `extra` names further files that hold shards which the folder lacks.
  explicit GoldenWeights(const std::filesystem::path& folder,
                         const std::vector<std::filesystem::path>& extra = {});

  // "layers.0.attn.wq_a": its .weight with whatever scales lie beside it.
  Matrix matrix(const std::string& name) const;
  // The tensor of that exact name, widened.
  FloatSpan vector(const std::string& name);
  bool has(const std::string& name) const { return find(name) != nullptr; }
  LayerWeights layer(const ModelConfig& config, int layer);
  HyperHeadWeights hyper_head();

 private:
  const GoldenFile* find(const std::string& name) const;
  CompressorWeights compressor(const std::string& name, int ratio, std::int64_t width);

  std::vector<GoldenFile> files_;
  std::vector<std::unique_ptr<std::vector<float>>> vectors_;
  std::vector<std::unique_ptr<std::vector<std::int32_t>>> tables_;
};

}  // namespace pivot::test
