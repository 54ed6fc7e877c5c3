// What every command that runs a model shares: the options that choose model, device and numerics, and
// opening it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "engine/session.h"
#include "ops/knobs.h"
#include "text/chat/encode.h"
#include "text/tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace pivot::cli {

struct ModelOptions {
  std::string model;
  std::string device = "auto";
  std::string cpu_backend;  // "", "simd", "reference"
  int threads = 0;
  std::vector<std::string> knobs;
  std::int64_t max_context = 0;
  std::int32_t chunk = 0;
};

// MODEL, --device, --backend, --threads, --knob, --max-context, --chunk.
void add_model_options(CLI::App& app, ModelOptions& options);

// The word for make_backend. Errors: kInvalidArgument for a --backend that does not go with the device.
Result<std::string> device_word(const ModelOptions& options);

struct OpenModel {
  std::string name;    // as the user gave it
  std::string device;  // what it runs on: Backend::name()
  std::filesystem::path folder;
  std::shared_ptr<const ModelWeights> weights;
  std::shared_ptr<Backend> backend;
  Knobs knobs;
  std::optional<Tokenizer> tokenizer;  // absent when not asked for
  double load_seconds = 0;

  // The model's end token, and the tokenizer's where it differs.
  std::vector<TokenId> stop_tokens() const;
};

// Checks the options, makes the back-end, maps the weights (with a progress bar on a terminal) and reads the
// tokenizer. What is cheap to check comes first.
Result<OpenModel> open_model(const ModelOptions& options, bool wants_tokenizer);

// A session of at most `max_context` tokens (0: as Session::create chooses).
Result<std::unique_ptr<Session>> open_session(const OpenModel& model, const ModelOptions& options,
                                              std::int64_t max_context);

// Which chat encoding the checkpoint wants: `wanted` is auto, preview or 0731; auto is 0731 where the
// folder's path says so (the two differ in the reasoning-effort texts only).
Result<ChatEncoding> resolve_encoding(std::string_view wanted, const std::filesystem::path& folder);

}  // namespace pivot::cli
