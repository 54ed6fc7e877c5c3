// Pieces of the parity cases: checkpoints, modes, and comparisons of logits, selections and taps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_weights.h"
#include "model/parity.h"
#include "model/runner.h"
#include "support/golden_file.h"

namespace pivot::test {

using Weights = std::shared_ptr<const ModelWeights>;

// Files and checkpoints by their place in the test data; opened once.
const GoldenFile& golden(const std::string& relative);
Weights checkpoint(const std::string& relative);
// The wide set's NVFP4 folder lacks the shard that equals the native one: a folder of links to both.
Weights wide_nvfp4();
// The same weights under another config (config_w32.json).
Weights with_config(const Weights& weights, const std::string& relative);
// The BF16 twin: every quantised matrix dequantised, which is exact for FP8 and FP4 with power-of-two scales.
Weights bf16_twin(const Weights& weights);

// The modes of goldens/README.md: "plain", "qat", "native" with fp32 activations.
Knobs fp32_mode(const std::string& mode);
RunnerOptions options_for(const Knobs& knobs);
std::string padded(int n);  // "n005"

struct LogitsRun {
  Weights weights;
  Knobs knobs;
  std::string ids_file, ids_name;        // prompt and forced tokens
  std::string logits_file, logits_name;  // rows: last prompt position, then each decode step
  std::int64_t prompt = 0;
};

std::vector<Metric> max_abs_within(const LogitsRun& run, double limit,
                                   const std::shared_ptr<Backend>& backend);
std::vector<Metric> rel_l2_within(const LogitsRun& run, double limit,
                                  const std::shared_ptr<Backend>& backend);
// Quantised state with fp32 activations: rel. L2 of all rows 0.01, and 0.05 in every row but one. A code that
// rounds the other way can change the selected set where its margin is small, which moves that row (n=260,
// decode step 8: margin 0.0025, one entry of 32 differs in both CPU back-ends, 0.072).
std::vector<Metric> qat_run(const LogitsRun& run, const std::shared_ptr<Backend>& backend);
// A whole bf16 run: two correct programs differ by flipped roundings, so only statistics can agree.
// `gap_name`: the tensor of top-1 margins; where a margin exceeds 1.5 the arg-max must agree. Empty: none.
std::vector<Metric> bf16_run(const LogitsRun& run, double rel_l2, const std::string& gap_name,
                             const std::shared_ptr<Backend>& backend);

// Rows of sets: how many differ although their margin is above `margin`, and the mean overlap of all rows.
struct SetDifference {
  std::int64_t rows = 0;
  std::int64_t wrong = 0;
  double overlap_sum = 0;
  double overlap() const { return rows > 0 ? overlap_sum / static_cast<double>(rows) : 1; }
};
void compare_sets(const std::vector<std::int32_t>& actual, const std::vector<std::int32_t>& expected,
                  const std::vector<float>& margins, double margin, SetDifference& result);

// Accumulated over calls of compare_taps.
struct TapDifference {
  double max_abs = 0;
  double max_rel_l2 = 0;
  std::int64_t compared = 0;
  SetDifference gates;

  void account(const std::vector<float>& actual, const std::vector<float>& expected);
  std::vector<Metric> metrics(double max_abs_limit, double rel_l2_limit) const;
};
// Compares every tap that the file has under `prefix`, e.g. "plain.n260.pre.": values, expert sets and
// weights. `rows`, `hc_rows`: the rows that the file keeps; empty means all.
void compare_taps(const TapRecorder& taps, const GoldenFile& file, const std::string& prefix,
                  std::int32_t layers, const std::vector<std::int32_t>& rows,
                  const std::vector<std::int32_t>& hc_rows, double gate_margin, TapDifference& result);
// Rows `rows` (all when empty) of a recorded tensor.
std::vector<float> take_rows(const TapRecorder::Record& record, const std::vector<std::int32_t>& rows);

}  // namespace pivot::test
