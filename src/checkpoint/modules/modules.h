// What each tensor is for, and how a logical tensor of the schema is stored under a given format.
//
// place_of() reads a stored tensor's name into module, layer and expert, whatever its format;
// stored_tensors() turns the schema's logical tensors into the exact list of names, dtypes and shapes that a
// checkpoint in given formats holds (specification 4.1 to 4.5). Planning, inspection, comparison and
// conversion share both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/identify.h"
#include "checkpoint/model_config.h"
#include "checkpoint/schema.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace pivot {

enum class Module : std::uint8_t {
  kEmbedding,        // embed
  kHead,             // head
  kNorm,             // norm, attn_norm, ffn_norm
  kHyperConnection,  // hc_attn_*, hc_ffn_*, hc_head_*
  kAttention,        // attn.wq_a ... wo_b, q_norm, kv_norm, attn_sink
  kCompressor,       // attn.compressor.*
  kIndexer,          // attn.indexer.* with its own compressor
  kRouter,           // ffn.gate.weight, .bias
  kHashTable,        // ffn.gate.tid2eid
  kSharedExpert,     // ffn.shared_experts.*
  kRoutedExpert,     // ffn.experts.E.*
  kDraftHead,        // what a draft stage has beyond a block: e_proj, main_proj, markov_head ...
};
inline constexpr int kNumModules = 12;
std::string_view module_name(Module module);  // "routed experts"
Module module_of(Slot slot);

// Where a tensor belongs. `block` is the layer, or the stage where `draft`; -1 for global tensors.
struct TensorPlace {
  Module module = Module::kNorm;
  bool draft = false;
  std::int32_t block = -1;
  std::int32_t expert = -1;
  std::string_view
      part;  // the name after the module's prefix: "wq_b.weight", "w1.weight_scale_2"; views the name
};
// nullopt for a name that is not in the native scheme.
std::optional<TensorPlace> place_of(std::string_view native_name);

// The native name of a stored tensor under the transformers scheme (specification 4.4):
// model.layers.3.self_attn.q_a_proj.weight
// -> layers.3.attn.wq_a.weight, ....weight_scale_inv -> ....scale. nullopt where there is none: unknown
// names, and the fused mlp.experts.* stacks that hold many native tensors in one.
std::optional<std::string> native_name_of(std::string_view transformers_name);

// True for tensors that tensor parallelism splits over ranks; every rank holds the others (performance
// notes 1.6).
bool sharded_by_tensor_parallelism(const TensorPlace& place);

// ---- How a checkpoint stores its matrices ----

struct CheckpointFormats {
  ExpertFormat experts = ExpertFormat::kMxfp4;
  ExpertFormat draft_experts = ExpertFormat::kMxfp4;
  DenseScale dense = DenseScale::kE8M0;
  HeadKind head = HeadKind::kNone;
  std::int32_t draft_stages = 0;
};
// As the config suggests them: a guess for planning without headers (specification 4.6: headers decide).
CheckpointFormats guess_formats(const ModelConfig& config, std::string_view config_json);
// As the headers show them.
CheckpointFormats formats_of(const Identification& identification);

struct StoredDeclaration {
  std::string name;  // native
  DType dtype = DType::kF32;
  Shape shape;
  TensorPlace place() const { return place_of(name).value_or(TensorPlace{}); }
  std::int64_t bytes() const;
};

// The stored tensors of one weight matrix [rows, cols] called `stem` (without ".weight"), appended to `out`.
void append_matrix(std::vector<StoredDeclaration>& out, const std::string& stem, std::int64_t rows,
                   std::int64_t cols, ExpertFormat format);

// Every stored tensor, native names, in schema order.
std::vector<StoredDeclaration> stored_tensors(const ModelConfig& config, const CheckpointFormats& formats);

}  // namespace pivot
