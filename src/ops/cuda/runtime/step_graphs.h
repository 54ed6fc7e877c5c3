// CUDA graphs of decode steps, one per StepKey.
//
// The first step of a key runs as it comes, which also grows every scratch buffer to its size; the second is
// captured; later ones are one graph launch. Steps of more than kMaxGraphTokens tokens are never captured.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <list>

#include "ops/ops.h"

namespace pivot::cuda {

inline constexpr std::int32_t kMaxGraphTokens = 128;
inline constexpr std::size_t kMaxGraphs = 64;  // the least recently used one makes room

class StepGraphs {
 public:
  explicit StepGraphs(cudaStream_t stream) : stream_(stream) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // `generation`: of the memory that the ops use besides the key's; a graph of an older generation is
  // dropped.
  void run(const StepKey& key, std::int64_t generation, const std::function<void()>& record);

  // Steps that were one launch of an existing graph.
  std::uint64_t replays() const { return replays_; }

 private:
  struct Entry {
    StepKey key;
    std::int64_t generation = 0;
    cudaGraphExec_t graph = nullptr;  // null: seen once, not captured yet
  };
  void drop(Entry& entry);

  cudaStream_t stream_;
  std::uint64_t replays_ = 0;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace pivot::cuda
