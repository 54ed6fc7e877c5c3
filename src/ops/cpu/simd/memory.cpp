#include "ops/cpu/simd/memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/file.h"

namespace pivot::simd {
namespace {

class Total {
 public:
  void add(const Matrix& m) {
    if (m.codes != nullptr && seen_.insert(m.codes).second) bytes_ += m.code_bytes() + m.scale_bytes();
  }
  void add(const CompressorWeights& c) {
    add(c.wkv);
    add(c.wgate);
  }
  void add(const ExpertWeights& e) {
    add(e.w1);
    add(e.w3);
    add(e.w2);
  }
  void add(const LayerWeights& layer) {
    const AttentionWeights& a = layer.attn;
    for (const Matrix* m : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &layer.ffn.gate}) add(*m);
    if (a.compressor) add(*a.compressor);
    if (a.indexer) {
      add(a.indexer->wq_b);
      add(a.indexer->weights_proj);
      add(a.indexer->compressor);
    }
    for (const ExpertWeights& expert : layer.ffn.experts) add(expert);
    add(layer.ffn.shared);
    bytes_ += static_cast<std::int64_t>((layer.attn_hc.fn.size() + layer.ffn_hc.fn.size()) * sizeof(float));
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::unordered_set<const std::byte*> seen_;
  std::int64_t bytes_ = 0;
};

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(1 << 30); }

}  // namespace

std::int64_t weight_bytes(const ModelWeights& weights) {
  Total total;
  total.add(weights.head);
  total.add(weights.embed);
  for (const LayerWeights& layer : weights.layers) total.add(layer);
  return total.bytes();
}

std::int64_t usable_memory_bytes() {
  auto bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const Result<std::string> limit = read_file("/sys/fs/cgroup/memory.max");
  std::int64_t value = 0;
  // "max" where there is no limit.
  if (limit && std::from_chars(limit->data(), limit->data() + limit->size(), value).ec == std::errc{} &&
      value > 0)
    bytes = std::min(bytes, value);
  return bytes;
}

Result<> check_weights_fit(std::int64_t weight_bytes, std::int64_t memory_bytes) {
  if (weight_bytes <= memory_bytes) return {};
  return fail(ErrorCode::kOutOfMemory,
              "the model's weights take {:.1f} GiB and this machine has {:.1f} GiB of memory: {:.1f} GiB are "
              "missing; "
              "use a machine with more memory or a smaller checkpoint",
              gib(weight_bytes), gib(memory_bytes), gib(weight_bytes - memory_bytes));
}

}  // namespace pivot::simd
