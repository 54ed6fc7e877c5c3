// pivot generate: one prompt, one answer.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "engine/stop_strings.h"
#include "inputs.h"
#include "model_options.h"
#include "results.h"
#include "sampling_options.h"
#include "terminal.h"
#include "text/chat/completion_parser.h"
#include "text/tokenizer/streaming_detokenizer.h"

namespace pivot::cli {
namespace {

struct GenerateCommand {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;
  std::string file;
  std::string ids;
  std::string messages;
  std::string system;
  bool raw = false;
  std::string think = "off";
  std::string effort = "none";
  std::string encoding = "auto";
  std::int64_t max_tokens = 1024;
  std::vector<std::string> stops;
  std::int32_t logprobs = -1;
  bool ignore_eos = false;
  bool quiet = false;
  bool json = false;
};

struct Prompt {
  std::string text;  // empty for --ids
  std::vector<TokenId> ids;
  bool is_chat = false;
  ThinkingMode thinking = ThinkingMode::kChat;
};

Result<> check(const GenerateCommand& command) {
  const int sources =
      !command.prompt.empty() + !command.file.empty() + !command.ids.empty() + !command.messages.empty();
  if (sources != 1) {
    return fail(ErrorCode::kInvalidArgument,
                "one prompt is wanted: --prompt TEXT (not empty), --file FILE, --ids FILE.json or --messages "
                "FILE.json; "
                "found {}",
                sources);
  }
  if (command.think != "on" && command.think != "off") {
    return fail(ErrorCode::kInvalidArgument, "--think is on or off; found \"{}\"", command.think);
  }
  if (command.raw && (!command.messages.empty() || !command.system.empty() || command.think == "on")) {
    return fail(ErrorCode::kInvalidArgument,
                "--raw gives the text as it is; it excludes --messages, --system and --think");
  }
  if (command.max_tokens < 0) {
    return fail(ErrorCode::kInvalidArgument, "--max-tokens is {}; it is positive, or 0 for no limit",
                command.max_tokens);
  }
  if (command.logprobs >= 0 && !command.json) {
    return fail(ErrorCode::kInvalidArgument,
                "--logprobs goes with --json: the numbers are part of that object");
  }
  return {};
}

Result<std::string> chat_prompt(const GenerateCommand& command, const std::string& text,
                                const ChatOptions& options) {
  if (!command.messages.empty()) {
    PIVOT_TRY(const std::string json, read_text(command.messages));
    auto prompt = encode_chat(json, options);
    if (!prompt) return fail(std::move(prompt).error().with(command.messages));
    return prompt;
  }
  Conversation conversation;
  if (!command.system.empty())
    conversation.messages.push_back(ChatMessage::text(ChatRole::kSystem, command.system));
  conversation.messages.push_back(ChatMessage::text(ChatRole::kUser, text));
  return encode_chat(conversation, options);
}

Result<Prompt> make_prompt(const GenerateCommand& command, const OpenModel& model) {
  Prompt prompt;
  const std::int64_t vocab_size = model.weights->config.vocab_size;
  if (!command.ids.empty()) {
    PIVOT_TRY(prompt.ids, read_ids(command.ids, vocab_size));
    return prompt;
  }
  std::string text = command.prompt;
  if (!command.file.empty()) {
    PIVOT_TRY(text, read_text(command.file));
  }
  if (command.raw) {
    prompt.text = std::move(text);
  } else {
    prompt.is_chat = true;
    ChatOptions options;
    prompt.thinking = command.think == "on" ? ThinkingMode::kThinking : ThinkingMode::kChat;
    options.thinking = prompt.thinking;
    PIVOT_TRY(options.effort, parse_reasoning_effort(command.effort));
    PIVOT_TRY(options.encoding, resolve_encoding(command.encoding, model.folder));
    PIVOT_TRY(prompt.text, chat_prompt(command, text, options));
  }
  prompt.ids = model.tokenizer->encode(prompt.text);
  return prompt;
}

// Memory for the prompt and the answer, not for the longest context that the model could hold.
Result<std::int64_t> context_for(const GenerateCommand& command, const OpenModel& model,
                                 const Prompt& prompt) {
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.ids.size());
  const std::int64_t limit = command.model.max_context > 0 ? command.model.max_context
                                                           : model.weights->config.max_position_embeddings;
  if (prompt_tokens > limit) {
    return fail(ErrorCode::kContextOverflow, "the prompt has {} tokens; {} holds {}. Shorten the prompt{}",
                prompt_tokens, command.model.max_context > 0 ? "--max-context" : "the model", limit,
                command.model.max_context > 0 ? " or raise --max-context" : "");
  }
  if (command.model.max_context > 0) return command.model.max_context;
  if (command.max_tokens == 0) return 0;
  return std::min(limit, prompt_tokens + command.max_tokens);
}

// Takes tokens as they come, cuts stop strings, and shows the text.
class Answer {
 public:
  Answer(const GenerateCommand& command, const OpenModel& model, const Prompt& prompt, StopStrings stops)
      : model_(model),
        detokenizer_(*model.tokenizer),
        stops_(std::move(stops)),
        silent_(command.json),
        on_terminal_(is_terminal(STDOUT_FILENO)),
        style_(style_for(STDOUT_FILENO)) {
    if (prompt.thinking == ThinkingMode::kThinking && !silent_) {
      dim_ = true;
      show(style_.dim);
    }
  }

  bool take(TokenId id, bool is_stop_token) {
    if (is_stop_token) return true;
    if (dim_ && model_.tokenizer->special().think_close == id) end_dim();
    append(stops_.feed(detokenizer_.push(id)));
    return !stops_.matched() && output_;
  }

  Result<> finish() {
    if (!stops_.matched()) {
      append(stops_.feed(detokenizer_.finish()));
      append(stops_.finish());
    }
    if (dim_) end_dim();
    if (!silent_ && (on_terminal_ || text_.empty() || text_.back() != '\n')) show("\n");
    return output_;
  }

  const std::string& text() const { return text_; }

 private:
  void append(const std::string& piece) {
    text_ += piece;
    if (!silent_ && !piece.empty()) show(on_terminal_ ? printable(piece) : piece);
  }
  void end_dim() {
    dim_ = false;
    show(style_.reset);
  }
  void show(std::string_view text) {
    if (output_) output_ = write_output(text);
  }

  const OpenModel& model_;
  StreamingDetokenizer detokenizer_;
  StopStrings stops_;
  bool silent_;
  bool on_terminal_;
  Style style_;
  bool dim_ = false;
  std::string text_;
  Result<> output_;
};

std::string as_json(const GenerateCommand& command, const OpenModel& model, const Prompt& prompt,
                    const SamplingParams& params, const GenerationResult& result, const std::string& text) {
  nlohmann::ordered_json json;
  json["model"] = model.name;
  json["device"] = model.device;
  json["knobs"] = describe(model.knobs);
  json["prompt_tokens"] = result.timings.prompt_tokens;
  json["text"] = text;
  if (prompt.is_chat) add_parsed(json, text, prompt.thinking);
  json["finish_reason"] = to_string(result.reason);
  json["tokens"] = tokens_json(result.tokens, *model.tokenizer, command.logprobs >= 0);
  json["sampling"] = sampling_json(params);
  json["timings"] = timings_json(result.timings, model.load_seconds);
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<int> run(const GenerateCommand& command) {
  PIVOT_TRY_VOID(check(command));
  PIVOT_TRY(StopStrings stops, StopStrings::create(command.stops));
  PIVOT_TRY(const OpenModel model, open_model(command.model, /*wants_tokenizer=*/true));
  PIVOT_TRY(SamplingParams params,
            resolve_sampling(command.sampling, model.folder, model.weights->config.vocab_size));
  params.top_logprobs = command.logprobs;
  PIVOT_TRY(const Prompt prompt, make_prompt(command, model));
  PIVOT_TRY(const std::int64_t max_context, context_for(command, model, prompt));
  PIVOT_TRY(const auto session, open_session(model, command.model, max_context));

  const InterruptScope interrupts;
  ProgressBar bar("reading", ProgressBar::Unit::kTokens);
  GenerateOptions options;
  options.sampling = params;
  options.max_new_tokens = command.max_tokens;
  if (!command.ignore_eos) options.stop_tokens = model.stop_tokens();
  options.on_prefill = [&bar](std::int64_t done, std::int64_t total) {
    done < total ? bar.update(done, total) : bar.clear();
  };
  options.cancel = &InterruptScope::flag();

  Answer answer(command, model, prompt, std::move(stops));
  const auto result = session->generate(prompt.ids, options, [&](const SampledToken& token) {
    const auto& ends = options.stop_tokens;
    return answer.take(token.id, std::find(ends.begin(), ends.end(), token.id) != ends.end());
  });
  bar.clear();
  PIVOT_TRY_VOID(answer.finish());
  if (!result) return fail(result.error());
  if (command.json) {
    PIVOT_TRY_VOID(write_output(as_json(command, model, prompt, params, *result, answer.text())));
  } else if (!command.quiet) {
    print_statistics(result->timings, result->reason, params);
  }
  return result->reason == FinishReason::kCancelled ? kInterruptedExit : 0;
}

}  // namespace

Run add_generate(CLI::App& app) {
  auto command = std::make_shared<GenerateCommand>();
  add_model_options(app, command->model);
  app.add_option("--prompt", command->prompt, "The prompt")->type_name("TEXT");
  app.add_option("--file", command->file, "Read the prompt from a file; - is standard input")
      ->type_name("FILE");
  app.add_option("--ids", command->ids,
                 "Token ids instead of text: a JSON list, or an object with it under \"ids\"")
      ->type_name("FILE.json");
  app.add_option("--messages", command->messages, "A conversation: a JSON list of {role, content, ...}")
      ->type_name("FILE.json");
  app.add_option("--system", command->system, "System message before the prompt")->type_name("TEXT");
  auto* raw =
      app.add_flag("--raw", command->raw, "Give the text to the model as it is, without the chat encoding");
  app.add_flag_callback(
         "--chat", [] {}, "Wrap the text as a user's message (the default)")
      ->excludes(raw);
  app.add_option("--think", command->think, "on lets the model reason before it answers")
      ->capture_default_str();
  app.add_option("--effort", command->effort, "Reasoning effort: none, low, high or max")
      ->capture_default_str();
  app.add_option("--encoding", command->encoding, "Chat encoding: auto, preview or 0731")
      ->capture_default_str();
  app.add_option("--max-tokens", command->max_tokens, "Longest answer; 0 goes on until the context is full")
      ->capture_default_str();
  add_sampling_options(app, command->sampling);
  app.add_option("--stop", command->stops, "Stop before this text; repeatable")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_option("--logprobs", command->logprobs,
                 "With --json: log-probabilities of each token and of the N likeliest")
      ->type_name("N");
  app.add_flag("--ignore-eos", command->ignore_eos, "Go on after the end-of-sentence token");
  app.add_flag("-q,--quiet", command->quiet, "No statistics at the end");
  app.add_flag("--json", command->json,
               "Print one JSON object at the end instead of the text (docs/commands.md)");
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
