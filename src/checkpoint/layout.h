// Which stored tensors make up which logical tensor of the model: the header audit (specification 10.1), on
// headers alone. Loading, inspecting, comparing and converting all start from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quantization.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/schema.h"
#include "tensor/matrix.h"

namespace pivot {

// One logical tensor and where its bytes lie. Pointers go into the TensorTable.
struct StoredTensor {
  SchemaTensor schema;
  std::string name;  // native name, whatever the file's style: "layers.3.attn.wq_a.weight"
  const TensorInfo* weight = nullptr;
  const TensorInfo* scale = nullptr;         // block scales (FP8, FP4, NVFP4)
  const TensorInfo* global_scale = nullptr;  // NVFP4
  const TensorInfo* input_scale = nullptr;   // NVFP4, may be absent
  Nvfp4Convention convention = Nvfp4Convention::kModelOpt;
  // The part of `weight` and `scale` that is this tensor: whole tensors, or one expert's rows of a fused one.
  std::uint64_t code_offset = 0;  // bytes into `weight`
  std::uint64_t code_bytes = 0;
  std::uint64_t scale_offset = 0;  // bytes into `scale`
  std::uint64_t scale_bytes = 0;
  // For matrices (TensorKind kPlain, kDense, kExpert):
  bool is_matrix = false;
  MatrixFormat format = MatrixFormat::kBF16;
  ScaleFormat scale_format = ScaleFormat::kNone;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

struct ModelLayout {
  NameStyle style = NameStyle::kNative;
  HeadKind head = HeadKind::kNone;
  int draft_stages = 0;
  std::vector<StoredTensor> tensors;  // expand_schema order; experts of a block are consecutive
  std::vector<const TensorInfo*>
      skipped;  // recognised and deliberately unread: embedding and head copies under mtp.*
};

struct DraftHead {
  HeadKind kind = HeadKind::kNone;
  int stages = 0;  // counted from tensor names, never from num_nextn_predict_layers (specification 1.1)
};
DraftHead find_draft_head(const TensorTable& table);
// nullopt where layer 0 has neither style's wq_a.
std::optional<NameStyle> find_name_style(const TensorTable& table);

// Assigns every tensor of the table exactly once. Missing, unexpected, mistyped and misshapen tensors are all
// reported in one Error, each with what was wanted and found.
Result<ModelLayout> resolve_layout(const ModelConfig& config, const QuantizationFacts& quantization,
                                   const TensorTable& table);

}  // namespace pivot
