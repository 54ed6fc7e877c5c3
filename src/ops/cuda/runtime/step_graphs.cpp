#include "ops/cuda/runtime/step_graphs.h"

#include <algorithm>

#include "ops/cuda/runtime/launch.h"

namespace pivot::cuda {

StepGraphs::~StepGraphs() {
  for (Entry& entry : entries_) drop(entry);
}

void StepGraphs::drop(Entry& entry) {
  if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  entry.graph = nullptr;
}

void StepGraphs::run(const StepKey& key, std::int64_t generation, const std::function<void()>& record) {
  if (key.num_tokens > kMaxGraphTokens) return record();
  auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (entry == entries_.end() || entry->generation != generation) {
    if (entry != entries_.end()) {
      drop(*entry);
      entries_.erase(entry);
    }
    if (entries_.size() == kMaxGraphs) {
      drop(entries_.back());
      entries_.pop_back();
    }
    // The step below may grow buffers: then the next one finds an old generation and comes here again.
    entries_.push_front({key, generation, nullptr});
    return record();
  }
  entries_.splice(entries_.begin(), entries_, entry);
  if (entry->graph == nullptr) {
    cudaGraph_t graph = nullptr;
    require_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                 "starting the capture of a step");
    record();
    require_cuda(cudaStreamEndCapture(stream_, &graph), "capturing a step");
    require_cuda(cudaGraphInstantiate(&entry->graph, graph, 0), "instantiating the graph of a step");
    require_cuda(cudaGraphDestroy(graph), "releasing a captured step");
  } else {
    ++replays_;
  }
  require_cuda(cudaGraphLaunch(entry->graph, stream_), "launching the graph of a step");
}

}  // namespace pivot::cuda
