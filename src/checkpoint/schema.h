// The tensors of a DeepSeek-V4 checkpoint as one table, readable beside specification 4.1 and 4.4: names in
// both styles, kinds, shapes as functions of the config, and the layers that have them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "tensor/view.h"

namespace pivot {

enum class NameStyle : std::uint8_t { kNative, kTransformers };
enum class HeadKind : std::uint8_t { kNone, kMtp, kDspark };
const char* to_string(NameStyle style);  // "native", "transformers"
const char* to_string(HeadKind head);    // "none", "mtp", "dspark"

// Where a logical tensor goes in ModelWeights.
enum class Slot : std::uint8_t {
  kEmbed,
  kHead,
  kNorm,
  kHcHeadFn,
  kHcHeadBase,
  kHcHeadScale,
  kAttnNorm,
  kFfnNorm,
  kHcAttnFn,
  kHcAttnBase,
  kHcAttnScale,
  kHcFfnFn,
  kHcFfnBase,
  kHcFfnScale,
  kAttnSink,
  kWqA,
  kQNorm,
  kWqB,
  kWkv,
  kKvNorm,
  kWoA,
  kWoB,
  kCompressorWkv,
  kCompressorWgate,
  kCompressorApe,
  kCompressorNorm,
  kIndexerWqB,
  kIndexerWeightsProj,
  kIndexerCompressorWkv,
  kIndexerCompressorWgate,
  kIndexerCompressorApe,
  kIndexerCompressorNorm,
  kGateWeight,
  kGateBias,
  kGateTid2eid,
  kExpertW1,
  kExpertW3,
  kExpertW2,
  kSharedW1,
  kSharedW3,
  kSharedW2,
  kEProj,
  kHProj,
  kENorm,
  kHNorm,
  kMainProj,
  kMainNorm,
  kDraftNorm,
  kDraftHcHeadFn,
  kDraftHcHeadBase,
  kDraftHcHeadScale,
  kMarkovW1,
  kMarkovW2,
  kConfidenceProj,
};

enum class TensorKind : std::uint8_t {
  kNormVector,  // BF16 (or F32), widened to fp32
  kF32Vector,   // F32; where a dump rounded it to BF16 that is accepted, except for the gate bias
  kF32Strict,   // F32 only: rounding the gate bias changes expert selection (specification 4.1)
  kPlain,       // BF16 or F32 matrix without scales
  kDense,       // FP8 with 128x128 scales, or BF16
  kExpert,      // FP4, NVFP4, FP8 or BF16, decided per tensor
  kIdTable,     // I64 (or I32) ids
};

// The blocks a row of the table applies to.
enum class Applies : std::uint8_t {
  kModel,        // once
  kBlock,        // every backbone layer and every draft stage
  kCompressed,   // layers of ratio 4 or 128
  kIndexed,      // layers of ratio 4
  kHashed,       // hash-routed layers
  kLearned,      // other layers and draft stages
  kPerExpert,    // every block, once per routed expert
  kMtp,          // mtp.0 of the plain MTP head
  kDsparkFirst,  // stage 0 of DSpark
  kDsparkLast,   // the last stage of DSpark
  kDraftLast,    // the last stage of either head
};

struct SchemaRow {
  Slot slot;
  Applies applies;
  TensorKind kind;
  std::string_view native;  // below "layers.L." / "mtp.M." ("%" stands for the expert), or the whole name
  std::string_view
      transformers;        // below "model.layers.L.", or the whole name; empty where the style has none
  std::string_view shape;  // "o_rows x o_cols": see schema.cpp for the symbols
};

std::span<const SchemaRow> schema_rows();

// One logical tensor that a checkpoint must hold.
struct SchemaTensor {
  const SchemaRow* row = nullptr;
  std::int32_t block = -1;   // layer index, or draft stage; -1 for the model's own
  bool draft = false;        // block counts draft stages
  std::int32_t expert = -1;  // routed expert
  Shape shape;               // of the values (FP4 codes are stored at half the columns)
};

// Every logical tensor of a model with this config and draft head, in table order per block.
std::vector<SchemaTensor> expand_schema(const ModelConfig& config, HeadKind head, int draft_stages);

// "layers.3.attn.wq_a.weight" in the given style; empty where the style has no name for it. Fused experts
// have the transformers names of specification 4.4; see layout.h.
std::string tensor_name(const SchemaTensor& tensor, NameStyle style);

}  // namespace pivot
