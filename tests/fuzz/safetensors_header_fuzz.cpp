// Arbitrary bytes as a safetensors file, as a header alone and as a dump of headers: an Error or a consistent
// table.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "checkpoint/identify.h"
#include "checkpoint/safetensors.h"

namespace {

// What every accepted table promises: tensors inside their shard's data, found under their own names.
void check_table(const pivot::TensorTable& table) {
  for (const pivot::TensorInfo& tensor : table.tensors()) {
    PIVOT_CHECK(table.find(tensor.name) == &tensor);
    PIVOT_CHECK(tensor.begin <= tensor.end && tensor.end <= table.shards()[tensor.shard].data_bytes);
    const pivot::TensorView view{tensor.dtype, tensor.shape, nullptr};
    PIVOT_CHECK(tensor.bytes() == 0 || static_cast<std::uint64_t>(view.bytes()) == tensor.bytes());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto table = pivot::read_table(bytes, "fuzz.safetensors")) {
    check_table(*table);
    const pivot::ShardInfo& shard = table->shards()[0];
    PIVOT_CHECK(shard.data_begin + shard.data_bytes == size);
  } else {
    PIVOT_CHECK(!table.error().message.empty());
  }
  pivot::Problems problems;
  pivot::TensorTableBuilder builder(problems);
  builder.add_header("fuzz", text, std::nullopt);
  const pivot::TensorTable table = builder.finish();
  if (problems.empty()) {
    check_table(table);
    pivot::identify("{\"model_type\":\"deepseek_v4\"}", table);
  }
  if (const auto dump = pivot::parse_header_dump(text, "fuzz.json")) check_table(*dump);
  return 0;
}
