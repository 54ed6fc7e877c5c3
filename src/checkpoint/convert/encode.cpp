#include "checkpoint/convert/encode.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "checkpoint/convert/transcode.h"
#include "checkpoint/stored_matrix.h"

namespace pivot {

namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

std::int64_t rows_per_piece(std::int64_t bytes_per_row) {
  const std::int64_t rows = std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(1, bytes_per_row));
  return std::max<std::int64_t>(kFp8BlockRows, rows / kFp8BlockRows * kFp8BlockRows);
}

// "layers.3.ffn.experts.7.w3.weight" -> the w1 or w2 that its exponent is filed under.
std::string exponent_key(std::string name) {
  const std::size_t at = name.rfind(".w3.");
  if (at != std::string::npos) name[at + 2] = '1';
  return name;
}

std::size_t fp8_scale_count(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>((rows + kFp8BlockRows - 1) / kFp8BlockRows *
                                  ((cols + kFp8BlockCols - 1) / kFp8BlockCols));
}

// The same values as FP4, in `codes` and `scales`.
Result<> as_fp4(const Matrix& matrix, std::vector<std::uint8_t>& codes, std::vector<std::uint8_t>& scales,
                Matrix& fp4) {
  codes.resize(static_cast<std::size_t>(matrix.rows * matrix.cols / 2));
  scales.resize(static_cast<std::size_t>(matrix.rows * matrix.cols / kFp4GroupCols));
  PIVOT_TRY_VOID(fp4_exact(matrix, 0, matrix.rows, codes, scales));
  fp4 = matrix;
  fp4.format = MatrixFormat::kFP4;
  fp4.scale_format = ScaleFormat::kE8M0;
  fp4.codes = reinterpret_cast<const std::byte*>(codes.data());
  fp4.scales = reinterpret_cast<const std::byte*>(scales.data());
  return {};
}

}  // namespace

Encoder::Encoder(const Checkpoint& source, const ModelLayout& layout, const ConvertOptions& options)
    : source_(source), options_(options) {
  for (const StoredTensor& tensor : layout.tensors)
    if (tensor.schema.row->kind == TensorKind::kExpert) by_name_.emplace(tensor.name, &tensor);
}

Matrix Encoder::matrix_of(const StoredTensor& tensor, std::span<const std::byte> codes,
                          std::span<const std::byte> scales) const {
  const std::byte* scale_data = nullptr;
  if (tensor.scale != nullptr)
    scale_data = scales.empty() ? source_.view(*tensor.scale).data + tensor.scale_offset : scales.data();
  return stored_matrix(tensor, tensor.rows,
                       codes.empty() ? source_.view(*tensor.weight).data + tensor.code_offset : codes.data(),
                       scale_data, stored_scalar(source_, tensor.global_scale));
}

ReadRange Encoder::range_of(const TensorInfo& stored, std::uint64_t offset, std::uint64_t bytes) const {
  return {stored.shard, source_.table().shards()[stored.shard].data_begin + stored.begin + offset, bytes};
}

std::vector<ReadJob> Encoder::jobs(const OutputTensor& tensor) const {
  std::vector<ReadJob> list;
  const auto in_pieces = [&](const TensorInfo& stored, std::uint64_t offset, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += kPieceBytes)
      list.push_back({{range_of(stored, offset + at, std::min<std::uint64_t>(kPieceBytes, bytes - at))}});
  };
  if (tensor.role == Role::kCopy) {
    in_pieces(*tensor.copy, 0, tensor.copy->bytes());
  } else {
    const StoredTensor& matrix = *tensor.matrix;
    const Matrix sizes = matrix_of(matrix);
    const auto code_bytes = static_cast<std::uint64_t>(sizes.code_bytes());
    const auto scale_bytes = static_cast<std::uint64_t>(sizes.scale_bytes());
    const ReadRange codes = range_of(*matrix.weight, matrix.code_offset, code_bytes);
    ReadJob both{{codes}};
    if (matrix.scale != nullptr)
      both.ranges.push_back(range_of(*matrix.scale, matrix.scale_offset, scale_bytes));
    if (tensor.joint) {
      if (tensor.role == Role::kScales) list.push_back(std::move(both));
    } else if (tensor.role == Role::kCodes && keeps_codes(matrix, options_.experts)) {
      in_pieces(*matrix.weight, matrix.code_offset, code_bytes);
    } else if (tensor.role == Role::kCodes) {
      list.push_back(std::move(both));
    } else if (tensor.role == Role::kScales) {
      list.push_back({{range_of(*matrix.scale, matrix.scale_offset, scale_bytes)}});
    }
  }
  if (list.empty()) list.emplace_back();
  return list;
}

Result<int> Encoder::shared_exponent(const StoredTensor& tensor) {
  const std::string key = exponent_key(tensor.name);
  {
    const std::lock_guard lock(mutex_);
    const auto found = exponents_.find(key);
    if (found != exponents_.end()) return found->second;
  }
  std::vector<std::string> names = {key};
  if (key.find(".w1.") != std::string::npos) {
    std::string other = key;
    other[other.rfind(".w1.") + 2] = '3';
    names.push_back(std::move(other));
  }
  std::optional<int> largest;
  for (const std::string& name : names) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      return fail(ErrorCode::kInvalidData, "the expert matrix {} is missing", name);
    const Matrix matrix = matrix_of(*found->second);
    std::optional<int> one;
    if (matrix.format == MatrixFormat::kFP4) {
      one = largest_exponent(matrix);
    } else {
      // Another coat of the same values: find their FP4 form first.
      std::vector<std::uint8_t> codes;
      std::vector<std::uint8_t> scales;
      Matrix fp4;
      PIVOT_TRY_VOID(as_fp4(matrix, codes, scales, fp4));
      one = largest_exponent(fp4);
    }
    if (one && (!largest || *one > *largest)) largest = one;
    for (const TensorInfo* part : {found->second->weight, found->second->scale})
      if (part != nullptr) source_.release_pages(*part);
  }
  const std::lock_guard lock(mutex_);
  return exponents_.emplace(key, largest.value_or(0)).first->second;
}

Result<> Encoder::note_rounding(const StoredTensor& tensor, std::int64_t rounded) {
  if (rounded == 0) return {};
  if (!options_.allow_rounding)
    return fail(ErrorCode::kUnsupported,
                "{} cannot hold {} values of {} exactly (it is stored as {}); pass --allow-rounding to "
                "accept the nearest values",
                to_string(options_.experts), rounded, tensor.name, to_string(tensor.format));
  const std::lock_guard lock(mutex_);
  rounded_values_ += rounded;
  if (rounded_example_.empty()) rounded_example_ = tensor.name;
  return {};
}

Result<> Encoder::codes(const StoredTensor& tensor, const Matrix& matrix, const ByteSink& sink) {
  const bool fp8 = options_.experts == ExpertTarget::kFp8;
  const std::int64_t bytes_per_row = fp8 ? matrix.cols : matrix.cols * 2;
  const std::int64_t step = rows_per_piece(bytes_per_row);
  std::vector<std::uint8_t> out;
  std::vector<std::uint8_t> scales;
  for (std::int64_t begin = 0; begin < matrix.rows; begin += step) {
    const std::int64_t end = std::min(matrix.rows, begin + step);
    out.resize(static_cast<std::size_t>((end - begin) * bytes_per_row));
    std::int64_t rounded = 0;
    if (fp8) {
      scales.resize(fp8_scale_count(end - begin, matrix.cols));
      rounded = fp8_blocks(matrix, begin, end, out, scales);
    } else {
      rounded =
          bf16_values(matrix, begin, end, {reinterpret_cast<std::uint16_t*>(out.data()), out.size() / 2});
    }
    PIVOT_TRY_VOID(note_rounding(tensor, rounded));
    PIVOT_TRY_VOID(sink(std::as_bytes(std::span(out))));
  }
  return {};
}

Result<> Encoder::scales(const StoredTensor& tensor, const Matrix& matrix, const ByteSink& sink) {
  if (options_.experts == ExpertTarget::kFp8) {
    std::vector<std::uint8_t> out(fp8_scale_count(matrix.rows, matrix.cols));
    fp8_scales(matrix, 0, matrix.rows, out);
    return sink(std::as_bytes(std::span(out)));
  }
  const std::int64_t step = rows_per_piece(matrix.cols);
  std::vector<std::uint8_t> fp4;
  std::vector<std::uint8_t> out;
  for (std::int64_t begin = 0; begin < matrix.rows; begin += step) {
    const std::int64_t rows = std::min(matrix.rows, begin + step) - begin;
    Matrix piece = matrix;  // rows [begin, begin + rows) as FP4
    piece.rows = rows;
    piece.format = MatrixFormat::kFP4;
    piece.codes = matrix.codes + begin * (matrix.cols / 2);
    if (matrix.format == MatrixFormat::kFP4) {
      piece.scales = matrix.scales + begin * (matrix.cols / kFp4GroupCols);
    } else {
      fp4.resize(static_cast<std::size_t>(rows * matrix.cols / kFp4GroupCols));
      PIVOT_TRY_VOID(fp4_scales(matrix, begin, begin + rows, fp4));
      piece.scales = reinterpret_cast<const std::byte*>(fp4.data());
    }
    if (options_.experts == ExpertTarget::kNative) {
      PIVOT_TRY_VOID(sink({piece.scales, static_cast<std::size_t>(piece.scale_bytes())}));
      continue;
    }
    PIVOT_TRY(const int exponent, shared_exponent(tensor));
    out.resize(static_cast<std::size_t>(rows * matrix.cols / kNvfp4GroupCols));
    PIVOT_TRY_VOID(nvfp4_scales(piece, exponent, 0, rows, out));
    PIVOT_TRY_VOID(sink(std::as_bytes(std::span(out))));
  }
  return {};
}

Result<> Encoder::both(const StoredTensor& tensor, const Matrix& matrix, JointCodes& kept,
                       const ByteSink& sink) {
  kept.matrix = &tensor;
  std::vector<std::uint8_t> scales;
  if (options_.experts == ExpertTarget::kFp8) {
    kept.bytes.resize(static_cast<std::size_t>(matrix.rows * matrix.cols));
    scales.resize(fp8_scale_count(matrix.rows, matrix.cols));
    PIVOT_TRY_VOID(note_rounding(tensor, fp8_blocks(matrix, 0, matrix.rows, kept.bytes, scales)));
    return sink(std::as_bytes(std::span(scales)));
  }
  Matrix fp4;
  PIVOT_TRY_VOID(as_fp4(matrix, kept.bytes, scales, fp4));
  if (options_.experts == ExpertTarget::kNative) return sink(std::as_bytes(std::span(scales)));
  PIVOT_TRY(const int exponent, shared_exponent(tensor));
  std::vector<std::uint8_t> nvfp4(static_cast<std::size_t>(matrix.rows * matrix.cols / kNvfp4GroupCols));
  PIVOT_TRY_VOID(nvfp4_scales(fp4, exponent, 0, matrix.rows, nvfp4));
  return sink(std::as_bytes(std::span(nvfp4)));
}

Result<> Encoder::input_scale(const StoredTensor& tensor, const ByteSink& sink) {
  float value = kUncalibratedInputScale;
  if (tensor.input_scale != nullptr) value = stored_scalar(source_, tensor.input_scale, value);
  if (options_.input_scales != nullptr) {
    std::string name = tensor.name;
    name.replace(name.size() - std::string_view("weight").size(), std::string::npos, "input_scale");
    const TensorInfo* found = options_.input_scales->table().find(name);
    if (found == nullptr)
      return fail(ErrorCode::kNotFound,
                  "--input-scales: {} has no {}; it must be an NVFP4 checkpoint of the same model",
                  options_.input_scales->folder().string(), name);
    value = stored_scalar(*options_.input_scales, found, value);
  }
  return sink(std::as_bytes(std::span(&value, 1)));
}

Result<> Encoder::encode(const OutputTensor& tensor, const ReadAhead::Loaded& loaded, JointCodes& kept,
                         const ByteSink& sink) {
  const auto range = [&](std::size_t index) {
    return index < loaded.size() ? loaded.range(index) : std::span<const std::byte>();
  };
  const auto run = [&]() -> Result<> {
    switch (tensor.role) {
      case Role::kCopy:
        return sink(range(0));
      case Role::kCodes:
        if (tensor.joint) {
          PIVOT_CHECK(kept.matrix == tensor.matrix, "the codes of {} came before its scales",
                      tensor.matrix->name);
          return sink(std::as_bytes(std::span(kept.bytes)));
        }
        if (keeps_codes(*tensor.matrix, options_.experts)) return sink(range(0));
        return codes(*tensor.matrix, matrix_of(*tensor.matrix, range(0), range(1)), sink);
      case Role::kScales:
        if (tensor.joint)
          return both(*tensor.matrix, matrix_of(*tensor.matrix, range(0), range(1)), kept, sink);
        return scales(*tensor.matrix, matrix_of(*tensor.matrix, {}, range(0)), sink);
      case Role::kInputScale:
        return input_scale(*tensor.matrix, sink);
      case Role::kGlobalScale: {
        PIVOT_TRY(const int exponent, shared_exponent(*tensor.matrix));
        const float value = nvfp4_global_scale(exponent);
        return sink(std::as_bytes(std::span(&value, 1)));
      }
    }
    return {};
  };
  Result<> result = run();
  // Scales look at single codes through the mapping: hand those pages back, or they add up to the whole file.
  if (tensor.role == Role::kScales && !tensor.joint) source_.release_pages(*tensor.matrix->weight);
  if (!result && tensor.matrix != nullptr)
    return fail(std::move(result).error().with(fmt::format("converting {}", tensor.matrix->name)));
  return result;
}

}  // namespace pivot
