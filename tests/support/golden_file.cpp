#include "support/golden_file.h"

#include <cstring>
#include <memory>

#include "base/check.h"
#include "numeric/formats.h"

namespace pivot::test {
namespace {

template <class T>
T element(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

double element(const TensorView& view, std::int64_t i) {
  switch (view.dtype) {
    case DType::kF64:
      return element<double>(view.data, i);
    case DType::kF32:
      return element<float>(view.data, i);
    case DType::kBF16:
      return to_float(BF16{element<std::uint16_t>(view.data, i)});
    case DType::kF8E4M3:
      return e4m3_to_float(element<std::uint8_t>(view.data, i));
    case DType::kF8E8M0:
      return e8m0_to_float(element<std::uint8_t>(view.data, i));
    case DType::kI64:
      return static_cast<double>(element<std::int64_t>(view.data, i));
    case DType::kI32:
      return element<std::int32_t>(view.data, i);
    case DType::kI8:
      return element<std::int8_t>(view.data, i);
    case DType::kU8:
      return element<std::uint8_t>(view.data, i);
    default:
      PIVOT_CHECK(false, "golden dtype {}", dtype_name(view.dtype));
  }
}

template <class T>
std::vector<T> widen(const TensorView& view) {
  std::vector<T> values(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(element(view, static_cast<std::int64_t>(i)));
  return values;
}

MatrixFormat format_of(const TensorView& weight, bool has_scale_2) {
  switch (weight.dtype) {
    case DType::kBF16:
      return MatrixFormat::kBF16;
    case DType::kF32:
      return MatrixFormat::kF32;
    case DType::kF8E4M3:
      return MatrixFormat::kFP8;
    default:
      return has_scale_2 ? MatrixFormat::kNVFP4 : MatrixFormat::kFP4;
  }
}

}  // namespace

GoldenFile::GoldenFile(const std::filesystem::path& path) {
  Result<MappedFile> file = MappedFile::open(path);
  PIVOT_CHECK(file.has_value(), "{}", file.error().to_string());
  file_ = std::move(*file);
  Result<TensorTable> table = read_table(file_.bytes(), path.filename().string());
  PIVOT_CHECK(table.has_value(), "{}", table.error().to_string());
  table_ = std::move(*table);
}

TensorView GoldenFile::view(std::string_view name) const {
  const TensorInfo* info = table_.find(name);
  PIVOT_CHECK(info != nullptr, "{} holds no {}", file_.path().string(), name);
  const std::uint64_t begin = table_.shards()[info->shard].data_begin + info->begin;
  return {info->dtype, info->shape, file_.bytes().data() + begin};
}

std::vector<float> GoldenFile::floats(std::string_view name) const { return widen<float>(view(name)); }
std::vector<double> GoldenFile::doubles(std::string_view name) const { return widen<double>(view(name)); }
std::vector<std::int32_t> GoldenFile::ints(std::string_view name) const {
  return widen<std::int32_t>(view(name));
}

std::vector<std::uint8_t> GoldenFile::bytes(std::string_view name) const {
  const TensorView tensor = view(name);
  const auto* data = reinterpret_cast<const std::uint8_t*>(tensor.data);
  return {data, data + tensor.bytes()};
}

GoldenWeights::GoldenWeights(const std::filesystem::path& folder,
                             const std::vector<std::filesystem::path>& extra) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files_.emplace_back(entry.path());
  for (const auto& path : extra) files_.emplace_back(path);
}

const GoldenFile* GoldenWeights::find(const std::string& name) const {
  for (const GoldenFile& file : files_)
    if (file.has(name)) return &file;
  return nullptr;
}

Matrix GoldenWeights::matrix(const std::string& name) const {
  const GoldenFile* file = find(name + ".weight");
  PIVOT_CHECK(file != nullptr, "no weight {}", name);
  const TensorView weight = file->view(name + ".weight");
  Matrix matrix;
  const GoldenFile* scale_2 = find(name + ".weight_scale_2");
  matrix.format = format_of(weight, scale_2 != nullptr);
  matrix.rows = weight.shape.at(0);
  matrix.cols = weight.shape.at(1);
  matrix.codes = weight.data;
  if (matrix.format == MatrixFormat::kFP4 || matrix.format == MatrixFormat::kNVFP4) matrix.cols *= 2;
  if (scale_2 != nullptr) {
    matrix.scale_format = ScaleFormat::kE4M3;
    matrix.scales = find(name + ".weight_scale")->view(name + ".weight_scale").data;
    matrix.global_scale = scale_2->floats(name + ".weight_scale_2").at(0);
    if (const GoldenFile* input = find(name + ".input_scale"))
      matrix.input_scale = input->floats(name + ".input_scale").at(0);
  } else if (const GoldenFile* scales = find(name + ".scale")) {
    const TensorView view = scales->view(name + ".scale");
    matrix.scale_format = view.dtype == DType::kF32 ? ScaleFormat::kF32 : ScaleFormat::kE8M0;
    matrix.scales = view.data;
  }
  return matrix;
}

FloatSpan GoldenWeights::vector(const std::string& name) {
  const GoldenFile* file = find(name);
  PIVOT_CHECK(file != nullptr, "no tensor {}", name);
  vectors_.push_back(std::make_unique<std::vector<float>>(file->floats(name)));
  return *vectors_.back();
}

CompressorWeights GoldenWeights::compressor(const std::string& name, int ratio, std::int64_t width) {
  CompressorWeights weights;
  weights.ratio = ratio;
  weights.width = width;
  weights.wkv = matrix(name + ".wkv");
  weights.wgate = matrix(name + ".wgate");
  weights.ape = vector(name + ".ape");
  weights.norm = vector(name + ".norm.weight");
  return weights;
}

LayerWeights GoldenWeights::layer(const ModelConfig& config, int layer) {
  const std::string name = "layers." + std::to_string(layer);
  const auto hyper = [&](const std::string& part) {
    HyperConnectionWeights hc;
    hc.fn = vector(name + ".hc_" + part + "_fn");
    hc.base = vector(name + ".hc_" + part + "_base");
    hc.scale = vector(name + ".hc_" + part + "_scale");
    return hc;
  };
  const auto expert = [&](const std::string& part) {
    return ExpertWeights{matrix(part + ".w1"), matrix(part + ".w3"), matrix(part + ".w2")};
  };
  LayerWeights weights;
  weights.attn_norm = vector(name + ".attn_norm.weight");
  weights.ffn_norm = vector(name + ".ffn_norm.weight");
  weights.attn_hc = hyper("attn");
  weights.ffn_hc = hyper("ffn");
  AttentionWeights& attn = weights.attn;
  const std::string a = name + ".attn";
  attn.wq_a = matrix(a + ".wq_a");
  attn.q_norm = vector(a + ".q_norm.weight");
  attn.wq_b = matrix(a + ".wq_b");
  attn.wkv = matrix(a + ".wkv");
  attn.kv_norm = vector(a + ".kv_norm.weight");
  attn.attn_sink = vector(a + ".attn_sink");
  attn.wo_a = matrix(a + ".wo_a");
  attn.wo_b = matrix(a + ".wo_b");
  const int ratio = config.ratio(layer);
  if (ratio != 0) attn.compressor = compressor(a + ".compressor", ratio, config.head_dim);
  if (ratio == 4)
    attn.indexer = IndexerWeights{matrix(a + ".indexer.wq_b"), matrix(a + ".indexer.weights_proj"),
                                  compressor(a + ".indexer.compressor", 4, config.index_head_dim)};
  MoeWeights& ffn = weights.ffn;
  ffn.gate = matrix(name + ".ffn.gate");
  if (config.hash_routed(layer)) {
    const std::string table = name + ".ffn.gate.tid2eid";
    tables_.push_back(std::make_unique<std::vector<std::int32_t>>(find(table)->ints(table)));
    ffn.tid2eid = *tables_.back();
  } else {
    ffn.bias = vector(name + ".ffn.gate.bias");
  }
  for (std::int64_t e = 0; e < config.n_routed_experts; ++e)
    ffn.experts.push_back(expert(name + ".ffn.experts." + std::to_string(e)));
  ffn.shared = expert(name + ".ffn.shared_experts");
  return weights;
}

HyperHeadWeights GoldenWeights::hyper_head() {
  return {vector("hc_head_fn"), vector("hc_head_base"), vector("hc_head_scale")};
}

}  // namespace pivot::test
