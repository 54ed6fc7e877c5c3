// Arbitrary text as config.json (and as hf_quant_config.json): an Error, or a config whose schema can be
// expanded.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/identify.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quantization.h"
#include "checkpoint/schema.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = pivot::parse_model_config(text, "config.json");
  if (config) {
    PIVOT_CHECK(static_cast<std::int64_t>(config->compress_ratios.size()) == config->num_hidden_layers);
    PIVOT_CHECK(config->nope_head_dim() > 0 && config->rope_main.theta > 1.0);
    if (config->num_hidden_layers * config->n_routed_experts < 256) {
      for (const pivot::SchemaTensor& tensor : pivot::expand_schema(*config, pivot::HeadKind::kDspark, 3)) {
        for (std::int64_t extent : tensor.shape) PIVOT_CHECK(extent >= 0);
      }
    }
  } else {
    PIVOT_CHECK(!config.error().message.empty());
  }
  (void)pivot::parse_quantization(text, "", "config.json");
  (void)pivot::parse_quantization("{}", text, "config.json");
  pivot::identify(text, pivot::TensorTable());
  return 0;
}
