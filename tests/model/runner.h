// A model with a few sequences, driven step by step: what the tests of the forward pass run on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cache/sequence_state.h"
#include "checkpoint/model_weights.h"
#include "model/forward.h"

namespace pivot::test {

// Keeps what it was given, per (name, layer), of the last step.
class TapRecorder : public TapSink {
 public:
  struct Record {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
    std::vector<std::int32_t> ids;
  };
  bool wants(std::string_view, std::int32_t) const override { return true; }
  void take(const Tap& tap) override;
  bool has(const std::string& name, std::int32_t layer) const { return records_.count({name, layer}) > 0; }
  const Record& at(const std::string& name, std::int32_t layer) const { return records_.at({name, layer}); }
  void clear() { records_.clear(); }

 private:
  std::map<std::pair<std::string, std::int32_t>, Record> records_;
};

struct RunnerOptions {
  Knobs knobs;
  std::int64_t max_context = 1024;
  std::int32_t sequences = 1;
  std::int32_t max_step_tokens = 0;  // 0: max_context
  std::int32_t max_logit_rows = 0;   // 0: sequences
  CacheOptions cache;
  bool poison = true;
};

// The back-end cannot run this model with these knobs (Backend::supports): a report may skip the case.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Runner {
 public:
  // Aborts on an Error, but throws Refused for kUnsupported: the tests of errors call the library themselves.
  Runner(std::shared_ptr<const ModelWeights> weights, std::shared_ptr<Backend> backend,
         const RunnerOptions& options);

  // Feeds tokens to a sequence in steps of `chunk` (0: all at once) and returns the logits after the last
  // one.
  std::vector<float> feed(std::int32_t sequence, std::span<const std::int32_t> ids, std::int32_t chunk = 0);

  // One ragged step; returns the last logits of every sequence in it.
  struct Share {
    std::int32_t sequence = 0;
    std::vector<std::int32_t> ids;
  };
  std::vector<std::vector<float>> step(std::span<const Share> shares);

  // All ids in one step, with the logits of the rows from `first_row` on, concatenated.
  std::vector<float> feed_for_rows(std::int32_t sequence, std::span<const std::int32_t> ids,
                                   std::int32_t first_row);

  // Prefill of the first `prompt` ids, then one decode step per further id: the rows of a golden's logits,
  // concatenated.
  std::vector<float> prefill_and_decode(std::span<const std::int32_t> ids, std::int64_t prompt,
                                        std::int64_t rows);

  // A fresh sequence in place of this one (its slot and pages are poisoned and handed out again).
  void restart(std::int32_t sequence);
  SequenceState& sequence(std::int32_t i) { return *sequences_[static_cast<std::size_t>(i)]; }
  const Model& model() const { return *model_; }
  CachePool& pool() { return *pool_; }
  void set_taps(TapSink* taps) { taps_ = taps; }

  // The exact values of cached rows of one layer, in order: window rows by position, or entries by index.
  std::vector<float> window_rows(std::int32_t sequence, std::int32_t layer, std::int64_t begin,
                                 std::int64_t end);
  std::vector<float> compressed_rows(std::int32_t sequence, std::int32_t layer);
  std::vector<float> index_keys(std::int32_t sequence, std::int32_t layer);

 private:
  void run_step(std::span<const Share> shares, std::span<const std::int32_t> logit_rows);
  std::vector<float> snapshot_rows(std::int32_t sequence, std::int32_t layer, Component component);

  std::shared_ptr<CachePool> pool_;
  std::unique_ptr<PageTables> tables_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<SequenceState>> sequences_;
  TapSink* taps_ = nullptr;
};

// SEQ(n, s) of docs/public-faults.md: pseudo-random ids.
std::vector<std::int32_t> pseudo_random_ids(std::int64_t n, std::uint32_t seed, std::int32_t vocab_size);

// The CPU back-ends that the tests of this build run on: those PIVOT_TEST_BACKENDS lists (comma-separated),
// or all.
std::vector<std::string> tested_backends();

// Loads a checkpoint or aborts.
std::shared_ptr<const ModelWeights> load_or_die(const std::filesystem::path& folder);

}  // namespace pivot::test
