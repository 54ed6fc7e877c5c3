#include "sampling_options.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.h"

namespace pivot::cli {

void add_sampling_options(CLI::App& app, SamplingOptions& options) {
  app.add_option("--temperature", options.temperature,
                 "0 is greedy (default: the checkpoint's generation_config)");
  app.add_option("--top-p", options.top_p,
                 "Keep the most likely tokens up to this sum (default: generation_config)");
  app.add_option("--top-k", options.top_k, "Keep this many tokens; 0 keeps all");
  app.add_option("--min-p", options.min_p,
                 "Keep tokens at least this likely, relative to the most likely one");
  app.add_option("--seed", options.seed,
                 "Seed of the draws; the same seed gives the same text (default: a new one)");
  app.add_flag("--greedy", options.greedy, "The most likely token each time; the same as --temperature 0");
}

Result<SamplingParams> generation_defaults(const std::filesystem::path& folder) {
  const auto file = folder / "generation_config.json";
  SamplingParams params;
  std::error_code missing;
  if (!std::filesystem::exists(file, missing)) return params;
  PIVOT_TRY(const std::string text, read_file(file, 1 << 20));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidData, "{}: {}; mend the file or remove it", file.string(), what);
  };
  if (!json.is_object()) return wrong("wanted a JSON object, found something else");
  const auto number = [&](const char* key) -> const nlohmann::json* {
    const auto it = json.find(key);
    return it == json.end() || it->is_null() ? nullptr : &*it;
  };
  if (const auto* value = number("temperature")) {
    if (!value->is_number()) return wrong("temperature is a number; found something else");
    params.temperature = value->get<float>();
  }
  if (const auto* value = number("top_p")) {
    if (!value->is_number()) return wrong("top_p is a number; found something else");
    params.top_p = value->get<float>();
  }
  if (const auto* value = number("top_k")) {
    if (!value->is_number_integer()) return wrong("top_k is an integer; found something else");
    params.top_k = value->get<std::int32_t>();
  }
  if (const auto* value = number("do_sample")) {
    if (!value->is_boolean()) return wrong("do_sample is true or false; found something else");
    if (!value->get<bool>()) params.temperature = 0;
  }
  return params;
}

Result<SamplingParams> resolve_sampling(const SamplingOptions& options, const std::filesystem::path& folder,
                                        std::int64_t vocab_size) {
  PIVOT_TRY(SamplingParams params, generation_defaults(folder));
  params.temperature = options.temperature.value_or(params.temperature);
  params.top_p = options.top_p.value_or(params.top_p);
  params.top_k = options.top_k.value_or(params.top_k);
  params.min_p = options.min_p.value_or(params.min_p);
  if (options.greedy) {
    if (options.temperature.value_or(0.0f) != 0.0f) {
      return fail(ErrorCode::kInvalidArgument,
                  "--greedy and --temperature {} contradict each other; give one of them",
                  *options.temperature);
    }
    params.temperature = 0;
  }
  if (options.seed) {
    params.seed = *options.seed;
  } else {
    std::random_device device;
    params.seed = device();  // 32 bits: short enough to type again
  }
  PIVOT_TRY_VOID(validate(params, vocab_size));
  return params;
}

}  // namespace pivot::cli
