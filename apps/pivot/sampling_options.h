// The sampling flags, and what they default to: the checkpoint's generation_config.json (specification
// section 6).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "engine/sampler.h"

namespace CLI {
class App;
}

namespace pivot::cli {

struct SamplingOptions {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::int32_t> top_k;
  std::optional<float> min_p;
  std::optional<std::uint64_t> seed;
  bool greedy = false;
};

// --temperature, --top-p, --top-k, --min-p, --seed, --greedy.
void add_sampling_options(CLI::App& app, SamplingOptions& options);

// generation_config.json of a checkpoint folder; do_sample false is temperature 0. Without the file:
// temperature 1, top_p 1, as published. Errors: kInvalidData for a file that is not such an object.
Result<SamplingParams> generation_defaults(const std::filesystem::path& folder);

// Flags over defaults; a seed that was not given is drawn from the system. Errors: validate's.
Result<SamplingParams> resolve_sampling(const SamplingOptions& options, const std::filesystem::path& folder,
                                        std::int64_t vocab_size);

}  // namespace pivot::cli
