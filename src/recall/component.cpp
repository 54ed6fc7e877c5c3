#include "recall/component.h"

#include <array>

namespace pivot::recall {

std::string_view to_string(Part part) {
  static constexpr std::array<std::string_view, kNumParts> kNames = {
      "compressor state between steps",
      "compressor state after a restore",
      "window rows between steps",
      "window rows after a restore",
      "rotary embedding",
      "raw KV rows",
      "compressed KV rows: scales",
      "compressed KV rows: values",
      "index keys: rotation",
      "index keys: scales",
      "index keys: byte layout",
      "index keys: values",
      "index queries",
      "selection: fewer than index_topk entries",
      "selection: candidates dropped",
      "routed experts"};
  return kNames[static_cast<std::size_t>(part)];
}

}  // namespace pivot::recall
