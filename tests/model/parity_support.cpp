#include "model/parity_support.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/dequantize.h"
#include "model/difference.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

std::filesystem::path data_path(const std::string& relative) {
  const auto path = find_data(relative);
  PIVOT_CHECK(path.has_value(), "{} is not in the test data", relative);
  return *path;
}

Knobs plain_knobs() {
  Knobs knobs;
  knobs.activations = Activations::kF32;
  knobs.kv = KvPrecision::kBf16;
  knobs.index_keys = IndexPrecision::kBf16;
  knobs.dense_act = ActQuant::kBf16;
  knobs.expert_act = ActQuant::kBf16;
  return knobs;
}

Knobs qat_knobs() {
  Knobs knobs = plain_knobs();
  knobs.kv = KvPrecision::kFp8;
  knobs.index_keys = IndexPrecision::kFp4;
  return knobs;
}

Knobs native_fp32_knobs() {
  Knobs knobs = qat_knobs();
  knobs.dense_act = ActQuant::kFp8;
  knobs.expert_act = ActQuant::kFp8;
  return knobs;
}

struct LogitsResult {
  std::vector<float> actual, expected;
  std::int64_t width = 0;
};

LogitsResult run_logits(const LogitsRun& run, const std::shared_ptr<Backend>& backend) {
  const GoldenFile& logits = golden(run.logits_file);
  const Shape shape = logits.view(run.logits_name).shape;
  const std::vector<std::int32_t> ids = golden(run.ids_file).ints(run.ids_name);
  Runner runner(run.weights, backend, options_for(run.knobs));
  return {runner.prefill_and_decode(ids, run.prompt, shape[0]), logits.floats(run.logits_name), shape[1]};
}

}  // namespace

const GoldenFile& golden(const std::string& relative) {
  static std::map<std::string, std::unique_ptr<GoldenFile>> files;
  auto& file = files[relative];
  if (file == nullptr) file = std::make_unique<GoldenFile>(data_path(relative));
  return *file;
}

Weights checkpoint(const std::string& relative) {
  static std::map<std::string, Weights> loaded;
  Weights& weights = loaded[relative];
  if (weights == nullptr) weights = load_or_die(data_path(relative));
  return weights;
}

Weights wide_nvfp4() {
  static Weights weights;
  if (weights != nullptr) return weights;
  const std::filesystem::path folder = scratch_dir() / "wide_nvfp4";
  std::filesystem::create_directories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(data_path("goldens-wide/nvfp4_lossless")))
    std::filesystem::create_symlink(entry.path(), folder / entry.path().filename());
  const std::string shard = "model-00001-of-00002.safetensors";
  std::filesystem::create_symlink(data_path("goldens-wide/native") / shard, folder / shard);
  weights = load_or_die(folder);
  return weights;
}

Weights with_config(const Weights& weights, const std::string& relative) {
  auto copy = std::make_shared<ModelWeights>(*weights);
  const auto text = read_file(data_path(relative));
  PIVOT_CHECK(text, "{}", text.error().to_string());
  const auto config = parse_model_config(*text, relative);
  PIVOT_CHECK(config, "{}", config.error().to_string());
  copy->config = *config;
  return copy;
}

Weights bf16_twin(const Weights& weights) {
  struct Storage {
    std::shared_ptr<const void> original;
    std::vector<std::unique_ptr<std::vector<BF16>>> matrices;
  };
  auto storage = std::make_shared<Storage>();
  storage->original = weights;
  auto twin = std::make_shared<ModelWeights>(*weights);
  const auto widen = [&](Matrix& matrix) {
    if (matrix.empty() || matrix.format == MatrixFormat::kBF16 || matrix.format == MatrixFormat::kF32) return;
    auto values = std::make_unique<std::vector<BF16>>(static_cast<std::size_t>(matrix.rows * matrix.cols));
    dequantize_rows(matrix, 0, matrix.rows, std::span<BF16>(*values));
    matrix.format = MatrixFormat::kBF16;
    matrix.scale_format = ScaleFormat::kNone;
    matrix.codes = reinterpret_cast<const std::byte*>(values->data());
    matrix.scales = nullptr;
    storage->matrices.push_back(std::move(values));
  };
  for (LayerWeights& layer : twin->layers) {
    AttentionWeights& a = layer.attn;
    for (Matrix* matrix : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b}) widen(*matrix);
    if (a.indexer) widen(a.indexer->wq_b);
    for (ExpertWeights& expert : layer.ffn.experts)
      for (Matrix* matrix : {&expert.w1, &expert.w3, &expert.w2}) widen(*matrix);
    for (Matrix* matrix : {&layer.ffn.shared.w1, &layer.ffn.shared.w3, &layer.ffn.shared.w2}) widen(*matrix);
  }
  twin->storage = storage;
  return twin;
}

// ---- modes (goldens/README.md) ----

Knobs fp32_mode(const std::string& mode) {
  if (mode == "qat") return qat_knobs();
  return mode == "native" ? native_fp32_knobs() : plain_knobs();
}

std::string padded(int n) { return fmt::format("n{:03}", n); }

RunnerOptions options_for(const Knobs& knobs) {
  RunnerOptions options;
  options.knobs = knobs;
  return options;
}

// ---- logits ----

std::vector<Metric> max_abs_within(const LogitsRun& run, double limit,
                                   const std::shared_ptr<Backend>& backend) {
  const LogitsResult result = run_logits(run, backend);
  return {{"max_abs", compare(result.actual, result.expected, result.width).max_abs, limit}};
}

std::vector<Metric> rel_l2_within(const LogitsRun& run, double limit,
                                  const std::shared_ptr<Backend>& backend) {
  const LogitsResult result = run_logits(run, backend);
  return {{"rel_l2", compare(result.actual, result.expected, result.width).rel_l2, limit}};
}

std::vector<Metric> qat_run(const LogitsRun& run, const std::shared_ptr<Backend>& backend) {
  const LogitsResult result = run_logits(run, backend);
  const auto width = static_cast<std::size_t>(result.width);
  std::vector<double> row_max;
  for (std::size_t begin = 0; begin < result.actual.size(); begin += width) {
    row_max.push_back(0);
    for (std::size_t i = begin; i < begin + width; ++i) {
      const double difference = std::abs(static_cast<double>(result.actual[i]) - result.expected[i]);
      if (!(difference <= row_max.back())) row_max.back() = difference;
    }
  }
  const auto above = std::count_if(row_max.begin(), row_max.end(), [](double max) { return !(max <= 0.05); });
  std::sort(row_max.begin(), row_max.end());
  return {{"rel_l2", compare(result.actual, result.expected, result.width).rel_l2, 0.01},
          {"median_row_max_abs", row_max[row_max.size() / 2], 0.05},
          {"worst_row_max_abs", row_max.back(), 0.3},
          {"rows_above_0.05", static_cast<double>(above), 1}};
}

std::vector<Metric> bf16_run(const LogitsRun& run, double rel_l2, const std::string& gap_name,
                             const std::shared_ptr<Backend>& backend) {
  const LogitsResult result = run_logits(run, backend);
  const Difference difference = compare(result.actual, result.expected, result.width);
  std::vector<Metric> metrics = {{"rel_l2", difference.rel_l2, rel_l2},
                                 {"mean_kl", difference.mean_kl, 0.05},
                                 {"argmax", difference.argmax_agreement, 0.75, true}};
  if (!gap_name.empty()) {
    const std::vector<float> gaps = golden(run.logits_file).floats(gap_name);
    std::int64_t wrong = 0;
    for (std::size_t row = 0; row < gaps.size(); ++row) {
      if (gaps[row] <= 1.5f) continue;
      const auto offset = static_cast<std::ptrdiff_t>(row) * result.width;
      const auto best = [&](const std::vector<float>& x) {
        return std::max_element(x.begin() + offset, x.begin() + offset + result.width) - x.begin();
      };
      wrong += best(result.actual) != best(result.expected) ? 1 : 0;
    }
    metrics.push_back({"wrong_argmax_gap>1.5", static_cast<double>(wrong), 0});
  }
  return metrics;
}

// ---- selection and routing ----

void compare_sets(const std::vector<std::int32_t>& actual, const std::vector<std::int32_t>& expected,
                  const std::vector<float>& margins, double margin, SetDifference& result) {
  const std::size_t rows = margins.size();
  const auto row_set = [&](const std::vector<std::int32_t>& values, std::size_t row) {
    const std::size_t width = values.size() / rows;
    std::set<std::int32_t> set(values.begin() + static_cast<std::ptrdiff_t>(row * width),
                               values.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    set.erase(-1);
    return set;
  };
  for (std::size_t row = 0; row < rows; ++row) {
    const std::set<std::int32_t> a = row_set(actual, row);
    const std::set<std::int32_t> e = row_set(expected, row);
    std::vector<std::int32_t> both;
    std::set_intersection(a.begin(), a.end(), e.begin(), e.end(), std::back_inserter(both));
    ++result.rows;
    result.overlap_sum += e.empty() ? 1.0 : static_cast<double>(both.size()) / static_cast<double>(e.size());
    if (a != e && margins[row] > margin) ++result.wrong;
  }
}

// ---- taps ----

std::vector<float> take_rows(const TapRecorder::Record& record, const std::vector<std::int32_t>& rows) {
  if (rows.empty()) return record.values;
  const std::size_t width = record.values.size() / static_cast<std::size_t>(record.shape[0]);
  std::vector<float> values;
  for (const std::int32_t row : rows)
    values.insert(
        values.end(),
        record.values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * width),
        record.values.begin() + static_cast<std::ptrdiff_t>((static_cast<std::size_t>(row) + 1) * width));
  return values;
}

void compare_taps(const TapRecorder& taps, const GoldenFile& file, const std::string& prefix,
                  std::int32_t layers, const std::vector<std::int32_t>& rows,
                  const std::vector<std::int32_t>& hc_rows, double gate_margin, TapDifference& result) {
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    const std::string base = fmt::format("{}L{}.", prefix, layer);
    for (const std::string name : {"attn_in", "attn_out", "ffn_in", "ffn_out", "hc"})
      if (file.has(base + name))
        result.account(take_rows(taps.at(name, layer), name == "hc" ? hc_rows : rows),
                       file.floats(base + name));
    if (!file.has(base + "gate_ids")) continue;
    const std::vector<std::int32_t> ids = file.ints(base + "gate_ids");
    const std::vector<float> weights = file.floats(base + "gate_w");
    const TapRecorder::Record& own = taps.at("gate_ids", layer);
    const auto count = static_cast<std::size_t>(own.shape[1]);
    const std::vector<float> margins = file.has(base + "gate_margin")
                                           ? file.floats(base + "gate_margin")
                                           : std::vector<float>(static_cast<std::size_t>(own.shape[0]),
                                                                std::numeric_limits<float>::infinity());
    compare_sets(own.ids, ids, margins, gate_margin, result.gates);
    // The golden's order is by score, ours by id: weights are compared by id, where the sets agree.
    std::vector<float> own_weights;
    std::vector<float> golden_weights;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t row = i / count;
      for (std::size_t j = row * count; j < (row + 1) * count; ++j) {
        if (own.ids[j] != ids[i]) continue;
        own_weights.push_back(taps.at("gate_w", layer).values[j]);
        golden_weights.push_back(weights[i]);
      }
    }
    result.account(own_weights, golden_weights);
  }
}

void TapDifference::account(const std::vector<float>& actual, const std::vector<float>& expected) {
  const Difference difference = compare(actual, expected, static_cast<std::int64_t>(expected.size()));
  if (!(difference.max_abs <= max_abs)) max_abs = difference.max_abs;
  if (!(difference.rel_l2 <= max_rel_l2)) max_rel_l2 = difference.rel_l2;
  ++compared;
}

std::vector<Metric> TapDifference::metrics(double max_abs_limit, double rel_l2_limit) const {
  return {{"tap_max_abs", max_abs, max_abs_limit},
          {"tap_rel_l2", max_rel_l2, rel_l2_limit},
          {"taps", static_cast<double>(compared), 1, true},
          {"wrong_experts", static_cast<double>(gates.wrong), 0}};
}

}  // namespace pivot::test
