#include "checkpoint/diff/diff.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>

#include "base/read_ahead.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quantization.h"
#include "checkpoint/stored_matrix.h"

namespace pivot {

namespace {

constexpr std::int64_t kPartBytes = std::int64_t{4}
                                    << 20;  // codes of one side that a worker compares at a time

// One side of a comparison: where its bytes lie.
struct Side {
  const StoredTensor* tensor = nullptr;
  std::uint32_t shard_base = 0;  // of this checkpoint's shards among the reader's files
  const Checkpoint* checkpoint = nullptr;
};

struct Pair {
  std::size_t result = 0;  // index into DiffReport::tensors
  Side a;
  Side b;
};

// Rows [begin, end) of a pair; a tensor that is no matrix is one part.
struct Part {
  std::size_t pair = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  bool whole = true;
  std::size_t scale_range_a = 0;  // index of the scales' range within the job; 0: none
  std::size_t scale_range_b = 0;
  std::uint64_t bytes = 0;
};

Result<ModelLayout> layout_of(const Checkpoint& checkpoint, const std::string& label) {
  if (!checkpoint.config_text())
    return fail(ErrorCode::kNotFound, "{} has no config.json; its tensors cannot be told apart without",
                label);
  PIVOT_TRY(const ModelConfig config, parse_model_config(*checkpoint.config_text(), label + ": config.json"));
  PIVOT_TRY(const QuantizationFacts quantization,
            parse_quantization(*checkpoint.config_text(), checkpoint.hf_quant_text().value_or(""), label));
  auto layout = resolve_layout(config, quantization, checkpoint.table());
  if (!layout)
    return fail(std::move(layout).error().with(
        fmt::format("{} is not a sound checkpoint (see `pivot inspect`)", label)));
  return layout;
}

std::string stored_as(const StoredTensor& tensor) {
  std::string format = std::string(dtype_name(tensor.weight->dtype));
  if (tensor.is_matrix) {
    format = to_string(tensor.format);
    if (tensor.format == MatrixFormat::kFP8)
      format += tensor.scale_format == ScaleFormat::kF32 ? " f32-scale" : " e8m0-scale";
  }
  return format;
}

Shape shape_of(const StoredTensor& tensor) {
  return tensor.is_matrix ? Shape{tensor.rows, tensor.cols} : tensor.weight->shape;
}

// Rows that a scale row covers, and bytes of one row of codes and of scales.
struct RowBytes {
  std::int64_t codes = 0;
  std::int64_t scales = 0;
  std::int64_t rows_per_scale = 1;
};
RowBytes row_bytes(const StoredTensor& tensor) {
  RowBytes bytes;
  Matrix one;
  one.format = tensor.format;
  one.scale_format = tensor.scale_format;
  one.rows = tensor.format == MatrixFormat::kFP8 ? kFp8BlockRows : 1;
  one.cols = tensor.cols;
  bytes.rows_per_scale = one.rows;
  bytes.codes = one.code_bytes() / one.rows;
  bytes.scales = one.scale_bytes();
  return bytes;
}

ReadRange range_of(const Side& side, const TensorInfo& stored, std::uint64_t offset, std::uint64_t bytes) {
  const ShardInfo& shard = side.checkpoint->table().shards()[stored.shard];
  return {side.shard_base + stored.shard, shard.data_begin + stored.begin + offset, bytes};
}

// The ranges of one side's part, appended to the job; returns the index of the scales' range, 0 where there
// is none.
std::size_t add_ranges(const Side& side, std::int64_t row_begin, std::int64_t row_end, bool whole,
                       ReadJob& job) {
  const StoredTensor& tensor = *side.tensor;
  if (whole && !tensor.is_matrix) {
    job.ranges.push_back(range_of(side, *tensor.weight, tensor.code_offset,
                                  tensor.code_bytes > 0 ? tensor.code_bytes : tensor.weight->bytes()));
    return 0;
  }
  const RowBytes bytes = row_bytes(tensor);
  const auto u = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  job.ranges.push_back(range_of(side, *tensor.weight, tensor.code_offset + u(row_begin * bytes.codes),
                                u((row_end - row_begin) * bytes.codes)));
  if (tensor.scale == nullptr || bytes.scales == 0) return 0;
  const std::int64_t first = row_begin / bytes.rows_per_scale;
  const std::int64_t last = (row_end + bytes.rows_per_scale - 1) / bytes.rows_per_scale;
  job.ranges.push_back(range_of(side, *tensor.scale, tensor.scale_offset + u(first * bytes.scales),
                                u((last - first) * bytes.scales)));
  return job.ranges.size() - 1;
}

// A vector as a matrix of one row; nullopt for integer tensors, which are only compared byte by byte.
std::optional<Matrix> vector_matrix(const StoredTensor& tensor, std::span<const std::byte> bytes) {
  Matrix matrix;
  if (tensor.weight->dtype == DType::kBF16) {
    matrix.format = MatrixFormat::kBF16;
    matrix.cols = static_cast<std::int64_t>(bytes.size()) / 2;
  } else if (tensor.weight->dtype == DType::kF32) {
    matrix.format = MatrixFormat::kF32;
    matrix.cols = static_cast<std::int64_t>(bytes.size()) / 4;
  } else {
    return std::nullopt;
  }
  matrix.rows = 1;
  matrix.codes = bytes.data();
  return matrix;
}

Comparison compare_vectors(const Pair& pair, std::span<const std::byte> a, std::span<const std::byte> b) {
  Comparison result;
  const bool one_dtype = pair.a.tensor->weight->dtype == pair.b.tensor->weight->dtype;
  const auto left = vector_matrix(*pair.a.tensor, a);
  const auto right = vector_matrix(*pair.b.tensor, b);
  if (left && right && left->cols == right->cols) return compare_matrices(*left, *right);
  result.same_bytes = one_dtype && a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
  result.same_codes = result.same_values = result.same_bytes;
  // Ids: count the entries that changed.
  const auto width = static_cast<std::size_t>(dtype_bytes(pair.a.tensor->weight->dtype));
  result.sums.elements = static_cast<std::int64_t>(a.size() / width);
  result.sums.codes_comparable = one_dtype;
  if (one_dtype && a.size() == b.size())
    for (std::size_t at = 0; at + width <= a.size(); at += width)
      result.sums.changed_codes += std::memcmp(a.data() + at, b.data() + at, width) == 0 ? 0 : 1;
  result.sums.changed_values = result.sums.changed_codes;
  return result;
}

Difference classify(const Comparison& comparison, const Pair& pair) {
  if (comparison.same_bytes) return Difference::kIdentical;
  if (comparison.same_values) return Difference::kReencoded;
  const bool quantised =
      pair.a.tensor->is_matrix && (pair.a.tensor->scale != nullptr || pair.b.tensor->scale != nullptr);
  if (!quantised) return Difference::kOtherValues;
  return comparison.same_codes ? Difference::kOtherScales : Difference::kRequantised;
}

TensorDifference describe(const StoredTensor& tensor) {
  TensorDifference result;
  result.name = tensor.name;
  result.module = module_of(tensor.schema.row->slot);
  result.draft = tensor.schema.draft;
  result.block = tensor.schema.block;
  result.expert = tensor.schema.expert;
  return result;
}

class Differ {
 public:
  Differ(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  Result<DiffReport> run(const ModelLayout& layout_a, const ModelLayout& layout_b);

 private:
  void pair_up(const ModelLayout& layout_a, const ModelLayout& layout_b);
  void cut_into_parts();
  Result<> compare_parts(ReadAhead& reader);
  Comparison compare_part(const Part& part, const ReadAhead::Loaded& loaded);
  void finish_part(const Part& part, const Comparison& comparison);

  const Checkpoint& a_;
  const Checkpoint& b_;
  const DiffOptions& options_;
  DiffReport report_;
  std::vector<Pair> pairs_;
  std::vector<Part> parts_;
  std::vector<ReadJob> jobs_;
  std::uint64_t total_bytes_ = 0;

  std::mutex mutex_;
  std::vector<Comparison> merged_;        // per pair
  std::vector<std::int64_t> parts_left_;  // per pair
  std::vector<bool> begun_;               // per pair
};

void Differ::pair_up(const ModelLayout& layout_a, const ModelLayout& layout_b) {
  std::unordered_map<std::string_view, const StoredTensor*> by_name;
  by_name.reserve(layout_b.tensors.size());
  for (const StoredTensor& tensor : layout_b.tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<const StoredTensor*> order;
  order.reserve(layout_a.tensors.size());
  for (const StoredTensor& tensor : layout_a.tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const StoredTensor* left, const StoredTensor* right) {
    return std::tuple(left->weight->shard, left->weight->begin, left->code_offset) <
           std::tuple(right->weight->shard, right->weight->begin, right->code_offset);
  });
  const auto shards_a = static_cast<std::uint32_t>(a_.table().shards().size());
  for (const StoredTensor* tensor : order) {
    TensorDifference result = describe(*tensor);
    result.stored_a = stored_as(*tensor);
    const auto found = by_name.find(tensor->name);
    if (found == by_name.end()) {
      result.difference = Difference::kOnlyA;
    } else {
      const StoredTensor* other = found->second;
      by_name.erase(found);
      result.stored_b = stored_as(*other);
      if (shape_of(*tensor) != shape_of(*other) || tensor->is_matrix != other->is_matrix) {
        result.difference = Difference::kOtherShape;
        result.stored_a += " " + to_string(shape_of(*tensor));
        result.stored_b += " " + to_string(shape_of(*other));
      } else {
        if (tensor->input_scale != nullptr && other->input_scale != nullptr)
          report_.other_input_scales +=
              stored_scalar(a_, tensor->input_scale) == stored_scalar(b_, other->input_scale) ? 0 : 1;
        pairs_.push_back({report_.tensors.size(), {tensor, 0, &a_}, {other, shards_a, &b_}});
      }
    }
    report_.tensors.push_back(std::move(result));
  }
  for (const StoredTensor& tensor : layout_b.tensors) {
    if (!by_name.contains(tensor.name)) continue;
    TensorDifference result = describe(tensor);
    result.stored_b = stored_as(tensor);
    result.difference = Difference::kOnlyB;
    report_.tensors.push_back(std::move(result));
  }
}

void Differ::cut_into_parts() {
  parts_left_.assign(pairs_.size(), 0);
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    const Pair& pair = pairs_[p];
    const bool matrix = pair.a.tensor->is_matrix;
    const std::int64_t rows = matrix ? pair.a.tensor->rows : 1;
    std::int64_t step = rows;
    if (matrix) {
      const std::int64_t row = std::max<std::int64_t>(
          1, std::max(row_bytes(*pair.a.tensor).codes, row_bytes(*pair.b.tensor).codes));
      // A multiple of the FP8 block, so that a part starts at a row of scales.
      step = std::max<std::int64_t>(kFp8BlockRows, kPartBytes / row / kFp8BlockRows * kFp8BlockRows);
    }
    for (std::int64_t begin = 0; begin < std::max<std::int64_t>(1, rows); begin += step) {
      Part part;
      part.pair = p;
      part.row_begin = begin;
      part.row_end = std::min(rows, begin + step);
      part.whole = part.row_begin == 0 && part.row_end == rows;
      ReadJob job;
      part.scale_range_a = add_ranges(pair.a, part.row_begin, part.row_end, part.whole, job);
      part.scale_range_b = add_ranges(pair.b, part.row_begin, part.row_end, part.whole, job);
      for (const ReadRange& range : job.ranges) part.bytes += range.bytes;
      total_bytes_ += part.bytes;
      ++parts_left_[p];
      parts_.push_back(part);
      jobs_.push_back(std::move(job));
    }
  }
}

Comparison Differ::compare_part(const Part& part, const ReadAhead::Loaded& loaded) {
  const Pair& pair = pairs_[part.pair];
  const std::size_t first_b = part.scale_range_a == 0 ? 1 : 2;
  if (!pair.a.tensor->is_matrix) return compare_vectors(pair, loaded.range(0), loaded.range(first_b));
  const std::int64_t rows = part.row_end - part.row_begin;
  const auto matrix = [&](const Side& side, std::size_t codes, std::size_t scales) {
    return stored_matrix(*side.tensor, rows, loaded.range(codes).data(),
                         scales == 0 ? nullptr : loaded.range(scales).data(),
                         stored_scalar(*side.checkpoint, side.tensor->global_scale));
  };
  const Matrix left = matrix(pair.a, 0, part.scale_range_a);
  const Matrix right = matrix(pair.b, first_b, part.scale_range_b);
  CompareOptions compare;
  // A tensor in several parts may turn out to differ elsewhere: its energy must then be that of all parts.
  compare.always_sum = !part.whole;
  return compare_matrices(left, right, compare);
}

void Differ::finish_part(const Part& part, const Comparison& comparison) {
  const std::lock_guard lock(mutex_);
  Comparison& merged = merged_[part.pair];
  if (!begun_[part.pair]) {
    merged = comparison;
    begun_[part.pair] = true;
  } else {
    merged.same_bytes = merged.same_bytes && comparison.same_bytes;
    merged.same_codes = merged.same_codes && comparison.same_codes;
    merged.same_values = merged.same_values && comparison.same_values;
    merged.sums.add(comparison.sums);
  }
  if (--parts_left_[part.pair] == 0) {
    TensorDifference& result = report_.tensors[pairs_[part.pair].result];
    result.difference = classify(merged, pairs_[part.pair]);
    result.sums = merged.sums;
  }
  report_.bytes_read += part.bytes;
  if (options_.progress) options_.progress(report_.bytes_read, total_bytes_);
}

Result<> Differ::compare_parts(ReadAhead& reader) {
  const auto stopped = [this] {
    return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed);
  };
  std::optional<Error> first_error;
  const auto work = [&] {
    for (;;) {
      if (stopped()) return reader.stop();
      auto loaded = reader.next();
      if (!loaded) {
        const std::lock_guard lock(mutex_);
        if (!first_error) first_error = std::move(loaded).error();
        return;
      }
      if (!*loaded) return;
      const Part& part = parts_[(*loaded)->job()];
      finish_part(part, compare_part(part, **loaded));
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < options_.threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (first_error) return fail(std::move(*first_error));
  return {};
}

Result<DiffReport> Differ::run(const ModelLayout& layout_a, const ModelLayout& layout_b) {
  const auto start = std::chrono::steady_clock::now();
  pair_up(layout_a, layout_b);
  cut_into_parts();
  merged_.resize(pairs_.size());
  begun_.assign(pairs_.size(), false);
  std::vector<std::filesystem::path> files;
  for (const Checkpoint* checkpoint : {&a_, &b_})
    for (const ShardInfo& shard : checkpoint->table().shards())
      files.push_back(checkpoint->folder() / shard.file);
  PIVOT_TRY(const auto reader, ReadAhead::start(files, std::move(jobs_)));
  PIVOT_TRY_VOID(compare_parts(*reader));
  report_.complete =
      std::none_of(report_.tensors.begin(), report_.tensors.end(),
                   [](const TensorDifference& one) { return one.difference == Difference::kNotReached; });
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(report_);
}

// ---- roll-up ----

void add_to_group(DifferenceGroup& group, const TensorDifference& tensor) {
  ++group.counts[static_cast<std::size_t>(tensor.difference)];
  group.sums.add(tensor.sums);
  const double error = tensor.sums.relative_error();
  if (error > group.worst_relative_error) {
    group.worst_relative_error = error;
    group.worst = tensor.name;
  }
}

void roll_up(DiffReport& report) {
  std::map<std::tuple<bool, int, int>, DifferenceGroup> blocks;
  std::map<std::tuple<bool, int>, DifferenceGroup> modules;
  for (const TensorDifference& tensor : report.tensors) {
    ++report.counts[static_cast<std::size_t>(tensor.difference)];
    DifferenceGroup& module = modules[{tensor.draft, static_cast<int>(tensor.module)}];
    DifferenceGroup& block = blocks[{tensor.draft, static_cast<int>(tensor.module), tensor.block}];
    for (DifferenceGroup* group : {&module, &block}) {
      group->module = tensor.module;
      group->draft = tensor.draft;
      add_to_group(*group, tensor);
    }
    block.block = tensor.block;
  }
  for (auto& [key, group] : modules) report.modules.push_back(std::move(group));
  for (auto& [key, group] : blocks) report.blocks.push_back(std::move(group));
}

bool only_same(const std::array<std::int64_t, kNumDifferences>& counts) {
  for (int d = 0; d < kNumDifferences; ++d)
    if (counts[static_cast<std::size_t>(d)] > 0 && !same_values(static_cast<Difference>(d))) return false;
  return true;
}

}  // namespace

const char* to_string(Difference difference) {
  switch (difference) {
    case Difference::kIdentical:
      return "byte-identical";
    case Difference::kReencoded:
      return "same values, scales re-encoded";
    case Difference::kOtherScales:
      return "same codes, other scales";
    case Difference::kRequantised:
      return "re-quantised";
    case Difference::kOtherValues:
      return "other values";
    case Difference::kOtherShape:
      return "other shape";
    case Difference::kOnlyA:
      return "only in A";
    case Difference::kOnlyB:
      return "only in B";
    case Difference::kNotReached:
      return "not reached";
  }
  return "";
}

bool same_values(Difference difference) {
  return difference == Difference::kIdentical || difference == Difference::kReencoded;
}

std::int64_t DifferenceGroup::tensors() const {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}
bool DifferenceGroup::same() const { return only_same(counts); }
bool DiffReport::same() const { return complete && only_same(counts); }

std::string DiffReport::verdict() const {
  const auto count = [&](Difference difference) { return counts[static_cast<std::size_t>(difference)]; };
  std::string text;
  if (!complete)
    text = fmt::format("PARTIAL, {} of {} tensors not reached: ", count(Difference::kNotReached),
                       tensors.size());
  if (count(Difference::kIdentical) == static_cast<std::int64_t>(tensors.size()))
    return text + "every tensor is byte-identical";
  if (same())
    return text +
           fmt::format(
               "the same values everywhere: {} tensors are byte-identical, {} have their scales re-encoded",
               count(Difference::kIdentical), count(Difference::kReencoded));
  std::string differing;
  for (const DifferenceGroup& module : modules) {
    std::string kinds;
    for (int d = 0; d < kNumDifferences; ++d) {
      const auto difference = static_cast<Difference>(d);
      const std::int64_t n = module.counts[static_cast<std::size_t>(d)];
      if (n == 0 || same_values(difference) || difference == Difference::kNotReached) continue;
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", n, to_string(difference));
    }
    if (kinds.empty()) continue;
    differing += fmt::format("{}{}{} ({}", differing.empty() ? "" : "; ", module.draft ? "draft " : "",
                             module_name(module.module), kinds);
    if (module.sums.squared_error > 0) differing += fmt::format(", SNR {:.1f} dB", module.sums.snr_db());
    differing += ")";
  }
  if (differing.empty()) return text + "no difference found so far";
  return text + "differs in " + differing + "; everything else has the same values";
}

Result<DiffReport> diff_checkpoints(const Checkpoint& a, const Checkpoint& b, const std::string& label_a,
                                    const std::string& label_b, const DiffOptions& options) {
  PIVOT_TRY(const ModelLayout layout_a, layout_of(a, label_a));
  PIVOT_TRY(const ModelLayout layout_b, layout_of(b, label_b));
  PIVOT_TRY(DiffReport report, Differ(a, b, options).run(layout_a, layout_b));
  report.label_a = label_a;
  report.label_b = label_b;
  roll_up(report);
  return report;
}

}  // namespace pivot
