#include "checkpoint/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <vector>

namespace pivot {
namespace {

constexpr std::uint64_t kSampleWhole = 4096;  // tensors up to this size are hashed whole
constexpr std::uint64_t kSampleBytes = 64;
// A sample maps its neighbourhood too (64 KiB on Linux), so pages are handed back every so many tensors.
constexpr std::size_t kReleaseEveryTensors = 512;

struct HashState {
  XXH3_state_t* state = XXH3_createState();
  ~HashState() { XXH3_freeState(state); }
  void add(const void* data, std::size_t size) { XXH3_64bits_update(state, data, size); }
  void add(std::uint64_t value) { add(&value, sizeof value); }
};

}  // namespace

std::uint64_t checkpoint_fingerprint(const Checkpoint& checkpoint, const ModelLayout& layout) {
  std::unordered_set<const TensorInfo*> unsampled;
  std::unordered_set<const TensorInfo*> sampled_once;
  for (const StoredTensor& tensor : layout.tensors) {
    if (tensor.schema.expert <= 0 || tensor.code_offset != 0) continue;
    unsampled.insert(tensor.weight);
    sampled_once.insert(tensor.scale);
  }
  const auto tensors = checkpoint.table().tensors();
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tensors[a].name < tensors[b].name; });
  HashState hash;
  XXH3_64bits_reset(hash.state);
  std::size_t sampled = 0;
  for (std::uint32_t index : order) {
    const TensorInfo& tensor = tensors[index];
    hash.add(tensor.name.size());
    hash.add(tensor.name.data(), tensor.name.size());
    hash.add(static_cast<std::uint64_t>(tensor.dtype));
    hash.add(tensor.shape.size());
    for (std::int64_t extent : tensor.shape) hash.add(static_cast<std::uint64_t>(extent));
    if (unsampled.count(&tensor) != 0) continue;
    const std::byte* data = checkpoint.view(tensor).data;
    const std::uint64_t size = tensor.bytes();
    if (size <= kSampleWhole) {
      hash.add(data, size);
    } else if (sampled_once.count(&tensor) != 0) {
      hash.add(data + size / 2, kSampleBytes);
    } else {
      for (std::uint64_t offset : {std::uint64_t{0}, size / 2, size - kSampleBytes})
        hash.add(data + offset, kSampleBytes);
    }
    if (++sampled % kReleaseEveryTensors == 0) checkpoint.release_pages();
  }
  return XXH3_64bits_digest(hash.state);
}

}  // namespace pivot
