#include "model_options.h"

#include <CLI/CLI.hpp>

#include "base/installation.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/load.h"
#include "engine/devices.h"
#include "ops/ops.h"
#include "stopwatch.h"
#include "terminal.h"

namespace pivot::cli {

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option(
         "MODEL", options.model,
         "Checkpoint folder, .safetensors file, ORG/NAME[@revision] in the Hugging Face cache, or `embedded`")
      ->required();
  app.add_option("--device", options.device, "auto, cpu, cuda or cuda:N (auto: cuda where it is there)")
      ->capture_default_str();
  app.add_option(
      "--backend", options.cpu_backend,
      "Of the CPU: simd (the fast one, default) or reference (the oracle, literal rounding points)");
  app.add_option("--threads", options.threads, "CPU threads; 0 is one per usable core")
      ->capture_default_str();
  // One value a flag (or several with commas, for the environment): `--knob kv=bf16 MODEL` must leave MODEL.
  app.add_option("--knob", options.knobs, "NAME=VALUE[,NAME=VALUE] of `pivot knobs`; repeatable")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->delimiter(',');
  app.add_option(
         "--max-context", options.max_context,
         "Tokens of prompt and answer to hold memory for; 0 chooses by what is needed and what is there")
      ->capture_default_str();
  app.add_option("--chunk", options.chunk, "Tokens of one prefill step; 0 chooses")->capture_default_str();
}

Result<std::string> device_word(const ModelOptions& options) {
  if (options.cpu_backend.empty()) return options.device;
  if (options.device != "cpu" && options.device != "auto") {
    return fail(ErrorCode::kInvalidArgument, "--backend goes with --device cpu; found --device {}",
                options.device);
  }
  if (options.cpu_backend == "simd") return std::string("cpu");
  if (options.cpu_backend == "reference") return std::string("cpu-reference");
  return fail(ErrorCode::kInvalidArgument, "--backend is simd or reference; found \"{}\"",
              options.cpu_backend);
}

std::vector<TokenId> OpenModel::stop_tokens() const {
  std::vector<TokenId> stops = {TokenId{static_cast<std::int32_t>(weights->config.eos_token_id)}};
  if (tokenizer && tokenizer->special().eos && *tokenizer->special().eos != stops[0]) {
    stops.push_back(*tokenizer->special().eos);
  }
  return stops;
}

Result<OpenModel> open_model(const ModelOptions& options, bool wants_tokenizer) {
  OpenModel model;
  model.name = options.model;
  PIVOT_TRY_VOID(set_knobs(model.knobs, options.knobs));
  PIVOT_TRY(const std::string device, device_word(options));
  PIVOT_TRY(model.backend, make_backend(device, options.threads));
  model.device = model.backend->name();
  PIVOT_TRY(const std::filesystem::path path, resolve_model_argument(options.model));

  const Stopwatch watch;
  PIVOT_TRY(const Checkpoint checkpoint, Checkpoint::open(path.string()));
  model.folder = checkpoint.folder();
  if (wants_tokenizer) {
    PIVOT_TRY(model.tokenizer, Tokenizer::load(model.folder));
  }
  ProgressBar bar("loading", ProgressBar::Unit::kBytes);
  LoadOptions load;
  load.draft = false;  // nothing here speculates
  load.progress = [&bar](const LoadProgress& progress) {
    bar.update(static_cast<std::int64_t>(progress.done_bytes),
               static_cast<std::int64_t>(progress.total_bytes));
  };
  PIVOT_TRY(model.weights, load_model(checkpoint, load));
  model.load_seconds = watch.seconds();
  return model;
}

Result<std::unique_ptr<Session>> open_session(const OpenModel& model, const ModelOptions& options,
                                              std::int64_t max_context) {
  SessionOptions session;
  session.weights = model.weights;
  session.backend = model.backend;
  session.knobs = model.knobs;
  session.max_context = max_context;
  session.chunk_tokens = options.chunk;
  return Session::create(std::move(session));
}

Result<ChatEncoding> resolve_encoding(std::string_view wanted, const std::filesystem::path& folder) {
  if (wanted == "preview") return ChatEncoding::kPreview;
  if (wanted == "0731") return ChatEncoding::k0731;
  if (wanted != "auto") {
    return fail(ErrorCode::kInvalidArgument, "--encoding is auto, preview or 0731; found \"{}\"", wanted);
  }
  const bool is_0731 = folder.string().find("0731") != std::string::npos;
  return is_0731 ? ChatEncoding::k0731 : ChatEncoding::kPreview;
}

}  // namespace pivot::cli
