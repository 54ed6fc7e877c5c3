#include "checkpoint/layout.h"

#include <algorithm>
#include <charconv>

#include "checkpoint/problems.h"

namespace pivot {
namespace {

// Far above any published model (the largest has about 71,000); keeps a wrong config from asking for endless
// memory.
constexpr std::int64_t kMaxLogicalTensors = 500'000;
constexpr int kMaxDraftStages = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::string_view without_suffix(std::string_view name, std::string_view suffix) {
  return name.size() >= suffix.size() && name.substr(name.size() - suffix.size()) == suffix
             ? name.substr(0, name.size() - suffix.size())
             : name;
}

// "mtp.12." -> 12 and the rest of the name; nullopt for anything else.
struct DraftName {
  int stage;
  std::string_view rest;
};
std::optional<DraftName> parse_draft_name(std::string_view name) {
  constexpr std::string_view kPrefix = "mtp.";
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int stage = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), stage);
  if (error != std::errc() || stage < 0 || end == name.data() + name.size() || *end != '.')
    return std::nullopt;
  return DraftName{stage, name.substr(static_cast<std::size_t>(end - name.data()) + 1)};
}

// Copies of the shared embedding and LM head that some exports repeat under mtp.M.
bool is_draft_copy(const DraftName& name) {
  return name.rest == "head.weight" || name.rest.substr(0, 4) == "emb." || name.rest.substr(0, 5) == "embed";
}

std::string shape_text(DType dtype, const Shape& shape) {
  return fmt::format("{} {}", dtype_name(dtype), to_string(shape));
}

class Resolver {
 public:
  Resolver(const ModelConfig& config, const QuantizationFacts& quantization, const TensorTable& table)
      : config_(config), quantization_(quantization), table_(table), used_(table.size(), false) {}

  Result<ModelLayout> resolve();

 private:
  // ---- finding stored tensors ----
  const TensorInfo* take(std::string_view name) {
    const TensorInfo* tensor = table_.find(name);
    if (tensor != nullptr) used_[static_cast<std::size_t>(tensor - table_.tensors().data())] = true;
    return tensor;
  }
  const TensorInfo* take_first(std::initializer_list<std::string> names) {
    for (const std::string& name : names) {
      if (const TensorInfo* tensor = take(name)) return tensor;
    }
    return nullptr;
  }
  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.add(ErrorCode::kInvalidData, format, std::forward<Args>(args)...);
  }
  void missing(std::string_view name, std::string_view wanted, const Shape& shape) {
    problem("tensor {} is missing ({} {} was wanted)", quote_name(name), wanted, to_string(shape));
  }
  // A part (scales and the like) with its dtype and shape; nullptr after a problem.
  const TensorInfo* require_part(const TensorInfo* part, std::string_view of, std::string_view name,
                                 DType dtype, const Shape& shape) {
    if (part == nullptr) {
      problem("tensor {} has no scales: {} is missing ({} was wanted)", quote_name(of), quote_name(name),
              shape_text(dtype, shape));
    } else if (part->dtype != dtype || part->shape != shape) {
      problem("tensor {} is {}; {} was wanted", quote_name(part->name), shape_text(part->dtype, part->shape),
              shape_text(dtype, shape));
    } else {
      return part;
    }
    return nullptr;
  }

  // ---- one logical tensor ----
  void resolve_tensor(StoredTensor& out);
  void resolve_vector(StoredTensor& out, const std::string& name);
  void resolve_matrix(StoredTensor& out, const std::string& name);
  void resolve_fp8(StoredTensor& out, std::string_view stem);
  void resolve_fp4(StoredTensor& out, std::string_view stem);
  void resolve_nvfp4(StoredTensor& out, std::string_view stem);
  const TensorInfo* scalar_part(std::string_view name);
  void note_convention(Nvfp4Convention convention, std::string_view evidence);

  // ---- fused experts of the transformers style ----
  struct FusedMatrix {
    const TensorInfo* weight = nullptr;
    const TensorInfo* scale = nullptr;
    MatrixFormat format = MatrixFormat::kBF16;
    ScaleFormat scale_format = ScaleFormat::kNone;
    std::int64_t rows = 0;  // of one expert's matrix
    std::int64_t cols = 0;
  };
  struct FusedExperts {
    int block = -1;
    bool present = false;
    FusedMatrix gate_up;  // gate rows, then up rows
    FusedMatrix down;
  };
  FusedMatrix resolve_fused(const std::string& name, std::int64_t rows, std::int64_t cols,
                            std::int64_t part_rows);
  const FusedExperts& fused_experts(int block);
  void slice_fused(StoredTensor& out);

  void check_leftovers(ModelLayout& layout);

  const ModelConfig& config_;
  const QuantizationFacts& quantization_;
  const TensorTable& table_;
  std::vector<bool> used_;
  Problems problems_;
  NameStyle style_ = NameStyle::kNative;
  FusedExperts fused_;
  bool convention_reported_ = false;
};

void Resolver::resolve_vector(StoredTensor& out, const std::string& name) {
  const TensorKind kind = out.schema.row->kind;
  out.weight = take(name);
  const std::string_view wanted = kind == TensorKind::kIdTable      ? "I64"
                                  : kind == TensorKind::kNormVector ? "BF16"
                                                                    : "F32";
  if (out.weight == nullptr) return missing(name, wanted, out.schema.shape);
  const DType dtype = out.weight->dtype;
  bool dtype_fits = false;
  switch (kind) {
    case TensorKind::kIdTable:
      dtype_fits = dtype == DType::kI64 || dtype == DType::kI32;
      break;
    case TensorKind::kNormVector:
      dtype_fits = dtype == DType::kBF16 || dtype == DType::kF32;
      break;
    case TensorKind::kF32Strict:
      dtype_fits = dtype == DType::kF32;
      break;
    default:
      dtype_fits = dtype == DType::kF32 || (style_ == NameStyle::kTransformers && dtype == DType::kBF16);
      break;
  }
  if (!dtype_fits || out.weight->shape != out.schema.shape) {
    return problem("tensor {} is {}; {} {} was wanted", quote_name(name),
                   shape_text(dtype, out.weight->shape), wanted, to_string(out.schema.shape));
  }
  out.code_bytes = out.weight->bytes();
}

void Resolver::resolve_fp8(StoredTensor& out, std::string_view stem) {
  out.format = MatrixFormat::kFP8;
  const Shape shape = {ceil_div(out.rows, kFp8BlockRows), ceil_div(out.cols, kFp8BlockCols)};
  const TensorInfo* scale =
      take_first({fmt::format("{}.scale", stem), fmt::format("{}.weight_scale_inv", stem)});
  out.scale_format = scale != nullptr && scale->dtype == DType::kF32 ? ScaleFormat::kF32 : ScaleFormat::kE8M0;
  out.scale = require_part(scale, out.weight->name, fmt::format("{}.scale", stem),
                           out.scale_format == ScaleFormat::kF32 ? DType::kF32 : DType::kF8E8M0, shape);
}

void Resolver::resolve_fp4(StoredTensor& out, std::string_view stem) {
  out.format = MatrixFormat::kFP4;
  out.scale_format = ScaleFormat::kE8M0;
  const TensorInfo* scale =
      take_first({fmt::format("{}.scale", stem), fmt::format("{}.weight_scale_inv", stem)});
  out.scale = require_part(scale, out.weight->name, fmt::format("{}.scale", stem), DType::kF8E8M0,
                           {out.rows, out.cols / kFp4GroupCols});
}

// An F32 scalar, stored with shape [] or [1]; nullptr where absent or after a problem.
const TensorInfo* Resolver::scalar_part(std::string_view name) {
  const TensorInfo* part = take(name);
  if (part == nullptr) return nullptr;
  if (part->dtype == DType::kF32 && (part->shape.empty() || part->shape == Shape{1})) return part;
  problem("tensor {} is {}; F32 [] was wanted", quote_name(name), shape_text(part->dtype, part->shape));
  return nullptr;
}

// Tensor names say whose convention a file follows; the quantization texts must not say otherwise (fault
// B08).
void Resolver::note_convention(Nvfp4Convention convention, std::string_view evidence) {
  if (convention_reported_ || !quantization_.present || quantization_.convention == convention) return;
  convention_reported_ = true;
  if (!quantization_.convention) {
    problem(
        "tensor {} follows the {} convention for NVFP4 scales, but the quantization config names neither "
        "ModelOpt "
        "nor compressed-tensors (quant_method is {}); add the quantization_config that belongs to these "
        "weights",
        quote_name(evidence), to_string(convention), quote_name(quantization_.quant_method));
  } else {
    problem(
        "tensor {} follows the {} convention for NVFP4 scales, but the quantization config names {}; the two "
        "read "
        "the global scale reciprocally, so correct the config or the weights",
        quote_name(evidence), to_string(convention), to_string(*quantization_.convention));
  }
}

void Resolver::resolve_nvfp4(StoredTensor& out, std::string_view stem) {
  out.format = MatrixFormat::kNVFP4;
  out.scale_format = ScaleFormat::kE4M3;
  const std::string scale_name = fmt::format("{}.weight_scale", stem);
  out.scale = require_part(take(scale_name), out.weight->name, scale_name, DType::kF8E4M3,
                           {out.rows, out.cols / kNvfp4GroupCols});
  const std::string multiplier_name = fmt::format("{}.weight_scale_2", stem);
  const std::string divisor_name = fmt::format("{}.weight_global_scale", stem);
  const bool has_multiplier = table_.contains(multiplier_name);
  const bool has_divisor = table_.contains(divisor_name);
  if (has_multiplier == has_divisor) {
    take(multiplier_name);
    take(divisor_name);
    return problem(
        "tensor {} is NVFP4 but has {} of {} (ModelOpt, a multiplier) and {} (compressed-tensors, a "
        "divisor); "
        "exactly one decides how its values read",
        quote_name(out.weight->name), has_divisor ? "both" : "neither", quote_name(multiplier_name),
        quote_name(divisor_name));
  }
  out.convention = has_multiplier ? Nvfp4Convention::kModelOpt : Nvfp4Convention::kCompressedTensors;
  const std::string& global_name = has_multiplier ? multiplier_name : divisor_name;
  out.global_scale = scalar_part(global_name);
  out.input_scale =
      scalar_part(fmt::format("{}.{}", stem, has_multiplier ? "input_scale" : "input_global_scale"));
  note_convention(out.convention, global_name);
}

void Resolver::resolve_matrix(StoredTensor& out, const std::string& name) {
  const TensorKind kind = out.schema.row->kind;
  const std::string_view stem = without_suffix(name, ".weight");
  out.is_matrix = true;
  out.rows = out.schema.shape[0];
  out.cols = out.schema.shape[1];
  out.weight = take(name);
  if (out.weight == nullptr && kind == TensorKind::kExpert)
    out.weight = take(fmt::format("{}.weight_packed", stem));
  const std::string_view wanted = kind == TensorKind::kPlain   ? "BF16"
                                  : kind == TensorKind::kDense ? "F8_E4M3 (or BF16)"
                                                               : "packed FP4, NVFP4, F8_E4M3 or BF16";
  if (out.weight == nullptr) return missing(name, wanted, out.schema.shape);
  const TensorInfo& weight = *out.weight;
  const bool packed =
      kind == TensorKind::kExpert && (weight.dtype == DType::kI8 || weight.dtype == DType::kU8);
  const Shape stored = packed ? Shape{out.rows, out.cols / 2} : out.schema.shape;
  const bool plain = weight.dtype == DType::kBF16 || weight.dtype == DType::kF32;
  const bool fp8 = weight.dtype == DType::kF8E4M3 && kind != TensorKind::kPlain;
  if ((!plain && !fp8 && !packed) || weight.shape != stored) {
    take_first(
        {fmt::format("{}.scale", stem), fmt::format("{}.weight_scale_inv", stem)});  // not a second problem
    return problem("tensor {} is {}; {} with values of shape {} was wanted", quote_name(weight.name),
                   shape_text(weight.dtype, weight.shape), wanted, to_string(out.schema.shape));
  }
  if (plain) {
    out.format = weight.dtype == DType::kBF16 ? MatrixFormat::kBF16 : MatrixFormat::kF32;
  } else if (fp8) {
    resolve_fp8(out, stem);
  } else if (weight.dtype == DType::kI8) {
    resolve_fp4(out, stem);
  } else {
    resolve_nvfp4(out, stem);
  }
  out.code_bytes = weight.bytes();
  out.scale_bytes = out.scale != nullptr ? out.scale->bytes() : 0;
}

// A 3-D tensor [E, rows, cols] holding one matrix per expert. `part_rows` is where it is cut (gate | up).
Resolver::FusedMatrix Resolver::resolve_fused(const std::string& name, std::int64_t rows, std::int64_t cols,
                                              std::int64_t part_rows) {
  FusedMatrix fused;
  fused.rows = rows;
  fused.cols = cols;
  const std::int64_t experts = config_.n_routed_experts;
  const TensorInfo* weight = take(name);
  const TensorInfo* scale = take_first({name + "_scale_inv", name + ".weight_scale_inv", name + ".scale"});
  if (weight == nullptr) {
    missing(name, "BF16 or F8_E4M3", {experts, rows, cols});
    return fused;
  }
  const bool packed = weight->dtype == DType::kI8;
  const bool fp8 = weight->dtype == DType::kF8E4M3;
  const bool plain = weight->dtype == DType::kBF16 || weight->dtype == DType::kF32;
  if ((!packed && !fp8 && !plain) || weight->shape != Shape{experts, rows, packed ? cols / 2 : cols}) {
    problem("tensor {} is {}; BF16, F8_E4M3 or packed FP4 with values of shape {} was wanted",
            quote_name(name), shape_text(weight->dtype, weight->shape),
            to_string(Shape{experts, rows, cols}));
    return fused;
  }
  if (plain) {
    fused.format = weight->dtype == DType::kBF16 ? MatrixFormat::kBF16 : MatrixFormat::kF32;
    if (scale != nullptr)
      problem("tensor {} is {} and yet has scales {}", quote_name(name), dtype_name(weight->dtype),
              quote_name(scale->name));
  } else {
    const bool f32_scales = fp8 && scale != nullptr && scale->dtype == DType::kF32;
    fused.format = fp8 ? MatrixFormat::kFP8 : MatrixFormat::kFP4;
    fused.scale_format = f32_scales ? ScaleFormat::kF32 : ScaleFormat::kE8M0;
    if (fp8 && part_rows % kFp8BlockRows != 0) {
      problem(
          "tensor {} is cut after {} rows, inside a 128x128 scale block; such a fused file cannot be split",
          quote_name(name), part_rows);
      return fused;
    }
    const Shape shape = fp8 ? Shape{experts, ceil_div(rows, kFp8BlockRows), ceil_div(cols, kFp8BlockCols)}
                            : Shape{experts, rows, cols / kFp4GroupCols};
    fused.scale =
        require_part(scale, name, name + "_scale_inv", f32_scales ? DType::kF32 : DType::kF8E8M0, shape);
    if (fused.scale == nullptr) return fused;
  }
  fused.weight = weight;
  return fused;
}

const Resolver::FusedExperts& Resolver::fused_experts(int block) {
  if (fused_.block == block) return fused_;
  fused_ = FusedExperts{};
  fused_.block = block;
  const std::string base = fmt::format("model.layers.{}.mlp.experts.", block);
  if (!table_.contains(base + "gate_up_proj") && !table_.contains(base + "down_proj")) return fused_;
  const std::int64_t inner = config_.moe_intermediate_size;
  fused_.present = true;
  fused_.gate_up = resolve_fused(base + "gate_up_proj", 2 * inner, config_.hidden_size, inner);
  fused_.down = resolve_fused(base + "down_proj", config_.hidden_size, inner, config_.hidden_size);
  return fused_;
}

void Resolver::slice_fused(StoredTensor& out) {
  const bool down = out.schema.row->slot == Slot::kExpertW2;
  const FusedMatrix& fused = down ? fused_.down : fused_.gate_up;
  out.is_matrix = true;
  out.rows = out.schema.shape[0];
  out.cols = out.schema.shape[1];
  if (fused.weight == nullptr) return;  // reported once for the block
  out.weight = fused.weight;
  out.scale = fused.scale;
  out.format = fused.format;
  out.scale_format = fused.scale_format;
  const auto first_row = static_cast<std::uint64_t>(out.schema.row->slot == Slot::kExpertW3 ? out.rows : 0);
  const auto experts = static_cast<std::uint64_t>(config_.n_routed_experts);
  const auto expert = static_cast<std::uint64_t>(out.schema.expert);
  const auto fused_rows = static_cast<std::uint64_t>(fused.rows);
  const auto rows = static_cast<std::uint64_t>(out.rows);
  const std::uint64_t expert_codes = fused.weight->bytes() / experts;
  out.code_offset = expert * expert_codes + expert_codes / fused_rows * first_row;
  out.code_bytes = expert_codes / fused_rows * rows;
  if (fused.scale != nullptr) {
    const std::uint64_t expert_scales = fused.scale->bytes() / experts;
    const auto block_rows =
        static_cast<std::uint64_t>(fused.format == MatrixFormat::kFP8 ? kFp8BlockRows : 1);
    const std::uint64_t scale_rows = (fused_rows + block_rows - 1) / block_rows;
    out.scale_offset = expert * expert_scales + expert_scales / scale_rows * (first_row / block_rows);
    out.scale_bytes = expert_scales / scale_rows * ((rows + block_rows - 1) / block_rows);
  }
}

void Resolver::resolve_tensor(StoredTensor& out) {
  const SchemaRow& row = *out.schema.row;
  out.name = tensor_name(out.schema, NameStyle::kNative);
  const std::string name = style_ == NameStyle::kNative ? out.name : tensor_name(out.schema, style_);
  if (row.applies == Applies::kPerExpert && style_ == NameStyle::kTransformers &&
      fused_experts(out.schema.block).present) {
    return slice_fused(out);
  }
  switch (row.kind) {
    case TensorKind::kPlain:
    case TensorKind::kDense:
    case TensorKind::kExpert:
      return resolve_matrix(out, name);
    default:
      return resolve_vector(out, name);
  }
}

void Resolver::check_leftovers(ModelLayout& layout) {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    const TensorInfo& tensor = table_.tensors()[i];
    const auto draft = parse_draft_name(tensor.name);
    if (draft && layout.head != HeadKind::kNone && is_draft_copy(*draft)) {
      layout.skipped.push_back(&tensor);
      continue;
    }
    problem("tensor {} ({}, in {}) has no place in this model", quote_name(tensor.name),
            shape_text(tensor.dtype, tensor.shape), table_.file_of(tensor));
  }
}

Result<ModelLayout> Resolver::resolve() {
  ModelLayout layout;
  const auto style = find_name_style(table_);
  if (!style) {
    return fail(ErrorCode::kInvalidData,
                "neither \"layers.0.attn.wq_a.weight\" (native names) nor "
                "\"model.layers.0.self_attn.q_a_proj.weight\" "
                "(transformers names) is among the {} tensors; a checkpoint as published was wanted, not one "
                "converted "
                "for another program",
                table_.size());
  }
  style_ = layout.style = *style;
  // transformers drops the draft head; whatever is called mtp.* in such a file is a leftover.
  const DraftHead head = style_ == NameStyle::kNative ? find_draft_head(table_) : DraftHead{};
  layout.head = head.kind;
  layout.draft_stages = head.stages;
  if (head.kind == HeadKind::kDspark && config_.dspark_block_size == 0) {
    problem(
        "the tensors hold a DSpark draft head, but the config lacks \"dspark_block_size\" and its "
        "companions; use "
        "the config.json that belongs to these weights");
    return fail(problems_.to_error("tensors"));
  }
  const std::int64_t blocks = config_.num_hidden_layers + head.stages;
  if (const std::int64_t count = blocks * (config_.n_routed_experts * 3 + 40); count > kMaxLogicalTensors) {
    return fail(
        ErrorCode::kInvalidData,
        "the config describes about {} tensors ({} layers of {} experts) while the files hold {}; use the "
        "config.json that belongs to these weights",
        count, blocks, config_.n_routed_experts, table_.size());
  }
  std::vector<SchemaTensor> wanted = expand_schema(config_, head.kind, head.stages);
  layout.tensors.resize(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    layout.tensors[i].schema = std::move(wanted[i]);
    resolve_tensor(layout.tensors[i]);
  }
  check_leftovers(layout);
  if (!problems_.empty()) return fail(problems_.to_error("tensors"));
  return layout;
}

}  // namespace

DraftHead find_draft_head(const TensorTable& table) {
  DraftHead head;
  for (const TensorInfo& tensor : table.tensors()) {
    if (const auto draft = parse_draft_name(tensor.name); draft && draft->stage < kMaxDraftStages) {
      head.stages = std::max(head.stages, draft->stage + 1);
    }
  }
  if (head.stages == 0) return head;
  head.kind = table.contains("mtp.0.main_proj.weight") ? HeadKind::kDspark
              : table.contains("mtp.0.e_proj.weight")  ? HeadKind::kMtp
                                                       : HeadKind::kNone;
  if (head.kind == HeadKind::kNone) head.stages = 0;
  return head;
}

std::optional<NameStyle> find_name_style(const TensorTable& table) {
  if (table.contains("layers.0.attn.wq_a.weight")) return NameStyle::kNative;
  if (table.contains("model.layers.0.self_attn.q_a_proj.weight")) return NameStyle::kTransformers;
  return std::nullopt;
}

Result<ModelLayout> resolve_layout(const ModelConfig& config, const QuantizationFacts& quantization,
                                   const TensorTable& table) {
  return Resolver(config, quantization, table).resolve();
}

}  // namespace pivot
