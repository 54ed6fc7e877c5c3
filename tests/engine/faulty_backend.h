// A back-end that computes as another does, and fails on demand.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "ops/forwarding_backend.h"

namespace pivot::test {

class FaultyBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Logits of a sequence whose share of a step contains this token id become NaN; -1: none.
  std::atomic<std::int32_t> nan_token{-1};
  // This many of the next steps report a device failure.
  std::atomic<std::int32_t> failing_steps{0};
  // While it is set, a step does not end.
  std::atomic<bool> hangs{false};
  // What it claims to have replayed.
  std::atomic<std::uint64_t> replayed{0};

  std::uint64_t replayed_steps() const override { return replayed; }
  Result<> synchronize() override {
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (failing_steps > 0) {
      --failing_steps;
      return fail(ErrorCode::kInternal, "the device failed, as the test asked");
    }
    return ForwardingBackend::synchronize();
  }
  void embed(const StepBatch& batch, const EmbedParams& p) override {
    span_is_bad_.assign(static_cast<std::size_t>(batch.num_spans), false);
    span_of_.assign(batch.span_of, batch.span_of + batch.num_tokens);
    for (std::int32_t t = 0; t < batch.num_tokens; ++t)
      if (batch.token_ids[t] == nan_token) span_is_bad_[static_cast<std::size_t>(batch.span_of[t])] = true;
    ForwardingBackend::embed(batch, p);
  }
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override {
    rows_.assign(p.rows, p.rows + p.num_rows);
    ForwardingBackend::hc_head(config, knobs, batch, p);
  }
  void logits(const Knobs& knobs, const LogitsParams& p) override {
    ForwardingBackend::logits(knobs, p);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      if (span_is_bad_[static_cast<std::size_t>(span_of_[static_cast<std::size_t>(rows_[i])])])
        p.logits[static_cast<std::int64_t>(i) * p.head.rows + 7] = __builtin_nanf("");
  }

 private:
  std::vector<bool> span_is_bad_;
  std::vector<std::int32_t> span_of_;
  std::vector<std::int32_t> rows_;
};

}  // namespace pivot::test
