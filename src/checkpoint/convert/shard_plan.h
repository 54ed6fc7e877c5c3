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
  bool joint = false;  // kCodes, kScales: both are made at once, the scales first (makes_both_at_once)
};

// Both sides are FP4 in some coat: the codes are copied and only scales change.
bool keeps_codes(const StoredTensor& matrix, ExpertTarget target);
// The target's scales follow from the decoded values: one read of the matrix then makes codes and scales, so
// they lie next to each other in the file.
bool makes_both_at_once(const StoredTensor& matrix, ExpertTarget target);

struct ShardPlan {
  std::string file;
  // In the order of the published files: dtype (widest first), then name; after them the joint matrices.
  std::vector<OutputTensor> tensors;
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
