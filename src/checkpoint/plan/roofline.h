// Rooflines: the least time that a decode step or a prefill can take, from bytes, FLOPs and messages.
//
//   decode   seconds = max(bytes per GPU / bandwidth, FLOPs per GPU / rate) + messages
//   prefill  seconds = max(FLOPs per GPU / rate, weight streaming) + messages (or the larger of the two,
//   overlapped)
// Every term is kept, so that a report can show the formula with its numbers.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"
#include "checkpoint/plan/cache_bytes.h"
#include "checkpoint/plan/flops.h"
#include "checkpoint/plan/hardware.h"
#include "checkpoint/plan/weight_bytes.h"

namespace pivot {

// How one replica is spread over its GPUs.
enum class Parallelism : std::uint8_t {
  kTensor,    // TP: every matrix split; small matrices, embedding and main KV on every rank, index keys split
              // by context
  kPipeline,  // PP: layers split; one GPU works on a micro-batch while the others work on others
  kExpert,    // EP: attention replicated over sequences, experts split
};
const char* to_string(Parallelism parallelism);  // "TP", "PP", "EP"

struct ModelFacts {
  ModelConfig config;
  ModelBytes bytes;
  CacheFormats cache;
  int draft_stages = 0;
  bool split_index_keys =
      true;  // TP: index keys are split over ranks by context; false: every rank holds all
};

// Distinct experts that a batch touches in one layer, uniform routing: E (1 - ((E - k) / E)^B).
double distinct_experts(const ModelConfig& config, double batch);

// Weight bytes that one decode step of `batch` sequences reads on one device that holds everything.
double weight_bytes_read(const ModelFacts& model, double batch);

struct DecodeStep {
  double batch = 1;
  double weight_bytes = 0;  // read by the busiest GPU
  double cache_bytes = 0;
  double flops = 0;
  double memory_seconds = 0;
  double compute_seconds = 0;
  double message_seconds = 0;  // all-reduces, hops, all-to-alls
  double host_seconds = 0;     // experts fetched from host memory, not overlapped
  double seconds() const {
    return (memory_seconds > compute_seconds ? memory_seconds : compute_seconds) + message_seconds +
           host_seconds;
  }
  double tokens_per_second() const { return batch / seconds(); }
};

struct DecodeAssumptions {
  bool message_bytes = true;    // add the bytes of all-reduces to their latency
  double resident_experts = 1;  // share of routed experts in GPU memory; the rest is read over the host link
  double bandwidth_bytes_per_second = 0;  // 0: the GPU's attainable bandwidth
};

// All bytes over all GPUs at once, nothing replicated, no messages: what no layout can beat.
double ideal_decode_tokens_per_second(const ModelFacts& model, const Machine& machine, int gpus, double batch,
                                      double context, const DecodeAssumptions& assumptions = {});

// One replica of `gpus` GPUs decoding `batch` sequences at `context` tokens each. With PP the batch is cut
// into micro-batches and seconds() is the time in which every sequence advances by one token.
DecodeStep decode_step(const ModelFacts& model, const Machine& machine, Parallelism parallelism, int gpus,
                       double batch, double context, const DecodeAssumptions& assumptions = {});

struct Prefill {
  double tokens = 0;
  double flops = 0;
  double compute_seconds = 0;  // per GPU, or the steady-state stage time of PP
  double weight_seconds = 0;   // streaming all experts once per chunk
  double message_seconds = 0;
  double bubble_seconds = 0;  // PP: filling and draining for one prompt
  double steady_seconds() const {
    return (compute_seconds > weight_seconds ? compute_seconds : weight_seconds) + message_seconds;
  }
  double overlapped_seconds() const;
  double first_token_seconds() const {
    return steady_seconds() + bubble_seconds;
  }  // one prompt on an idle replica
  double tokens_per_second() const { return tokens / steady_seconds(); }
};

inline constexpr std::int64_t kPrefillChunkTokens = 8192;
inline constexpr std::int64_t kPipelineChunkTokens = 1024;

Prefill prefill(const ModelFacts& model, const Machine& machine, Parallelism parallelism, int gpus,
                std::int64_t tokens);

}  // namespace pivot
