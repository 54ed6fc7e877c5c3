// What goes into each output shard: the source's tensors, with the experts' replaced by their target set.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/convert/convert.h"
#include "checkpoint/layout.h"
#include "checkpoint/modules/modules.h"
#include "checkpoint/safetensors_writer.h"

namespace pivot {

enum class Role : std::uint8_t { kCopy, kCodes, kScales, kGlobalScale, kInputScale };

struct OutputTensor {
  TensorDeclaration declaration;
  Role role = Role::kCopy;
  const TensorInfo* copy = nullptr;      // kCopy
  const StoredTensor* matrix = nullptr;  // the others
};

struct ShardPlan {
  std::string file;
  std::vector<OutputTensor> tensors;  // in the order of the published files: dtype (widest first), then name
  std::uint64_t data_bytes = 0;
  std::vector<std::pair<std::string, std::string>> metadata;
};

struct OutputPlan {
  std::vector<ShardPlan> shards;  // same names as the source's
  std::uint64_t data_bytes = 0;
  std::int64_t matrices = 0;
  std::int64_t copied = 0;
};

// `layout` was resolved from source.table().
Result<OutputPlan> plan_output(const Checkpoint& source, const ModelLayout& layout,
                               const ConvertOptions& options);

// The texts that describe the output: config.json, and hf_quant_config.json for NVFP4 (empty otherwise).
struct OutputTexts {
  std::string config;
  std::string hf_quant;
};
Result<OutputTexts> output_texts(const Checkpoint& source, std::int64_t num_layers,
                                 const ConvertOptions& options);
std::string output_index(const OutputPlan& plan);

}  // namespace pivot
