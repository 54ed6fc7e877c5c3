// pivot chat: a conversation in the terminal.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "chat_history.h"
#include "command.h"
#include "inputs.h"
#include "line_editor.h"
#include "model_options.h"
#include "results.h"
#include "sampling_options.h"
#include "terminal.h"
#include "text/chat/completion_parser.h"
#include "text/tokenizer/streaming_detokenizer.h"

namespace pivot::cli {
namespace {

struct ChatCommand {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system;
  std::string think = "off";
  std::string effort = "none";
  std::string encoding = "auto";
  std::int64_t max_tokens = 0;
  bool ignore_eos = false;
  bool json = false;
};

constexpr const char* kHelp =
    "  /help            this text\n"
    "  /think on|off    let the model reason before it answers (shown dim)\n"
    "  /system [TEXT]   set, or without TEXT remove, the system message\n"
    "  /reset           forget the conversation\n"
    "  /save FILE       write the conversation as JSON (for `pivot generate --messages`)\n"
    "  /quit            leave; so does Ctrl-D\n"
    "  Ctrl-C stops an answer, or clears the line. A line that ends in \\ goes on in the next one.\n";

class Chat {
 public:
  Chat(const ChatCommand& command, const OpenModel& model, Session& session, SamplingParams sampling,
       ChatOptions options)
      : command_(command),
        model_(model),
        session_(session),
        sampling_(std::move(sampling)),
        options_(std::move(options)),
        history_(*model.tokenizer),
        style_(style_for(STDOUT_FILENO)) {
    history_.set_system(command.system);
  }

  Result<int> run() {
    const InterruptScope interrupts;
    LineEditor editor;
    interactive_ = editor.interactive();
    if (interactive_) {
      PIVOT_TRY_VOID(write_output(fmt::format("{}{} on {}, up to {} tokens. /help lists the commands.{}\n",
                                              style_.dim, model_.name, model_.device,
                                              format_count(session_.max_context()), style_.reset)));
    }
    std::string text;
    while (read_message(editor, text)) {
      if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (text[0] == '/') {
        PIVOT_TRY(const bool go_on, obey(text));
        if (!go_on) break;
        continue;
      }
      PIVOT_TRY_VOID(turn(text));
    }
    return 0;
  }

 private:
  // A message: one line, or several joined by a backslash at their ends. False at the end of the input.
  bool read_message(LineEditor& editor, std::string& text) {
    const std::string first = fmt::format("\1{}\1>\1{}\1 ", style_.bold, style_.reset);
    text.clear();
    for (;;) {
      std::string line;
      switch (editor.read(text.empty() ? first : ". ", line)) {
        case LineEditor::Outcome::kEnd:
          if (interactive_) static_cast<void>(write_output("\n"));
          return !text.empty();
        case LineEditor::Outcome::kInterrupted:
          if (!interactive_) return false;
          text.clear();
          continue;
        case LineEditor::Outcome::kLine:
          break;
      }
      const bool more = !line.empty() && line.back() == '\\';
      if (more) line.back() = '\n';
      text += line;
      if (!more) return true;
    }
  }

  // Runs a slash command; false to leave. What a command cannot do is said, and the chat goes on.
  Result<bool> obey(const std::string& line) {
    const std::size_t space = line.find_first_of(" \t");
    const std::string name = line.substr(0, space);
    std::string argument =
        space == std::string::npos ? "" : line.substr(line.find_first_not_of(" \t", space));
    argument.erase(argument.find_last_not_of(" \t\n") + 1);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      PIVOT_TRY_VOID(say(kHelp));
    } else if (name == "/reset") {
      history_.clear();
      session_.reset();
      PIVOT_TRY_VOID(say("The conversation is forgotten.\n"));
    } else if (name == "/think" && (argument == "on" || argument == "off")) {
      options_.thinking = argument == "on" ? ThinkingMode::kThinking : ThinkingMode::kChat;
      PIVOT_TRY_VOID(say(fmt::format("Thinking is {}.\n", argument)));
    } else if (name == "/think") {
      print_note("/think takes on or off");
    } else if (name == "/system") {
      history_.set_system(argument);
      PIVOT_TRY_VOID(say(argument.empty() ? "No system message.\n" : "The system message is set.\n"));
    } else if (name == "/save") {
      if (argument.empty()) {
        print_note("/save takes the name of a file");
      } else if (const auto saved = write_file(argument, history_.to_json()); !saved) {
        print_error(saved.error().to_string());
      } else {
        PIVOT_TRY_VOID(say(fmt::format("Saved {} messages to {}.\n", history_.messages().size(), argument)));
      }
    } else {
      print_note(fmt::format("{} is not a command; /help lists them. A message cannot begin with /", name));
    }
    return true;
  }

  // One question and its answer. An error that concerns this turn alone is told and the turn forgotten.
  Result<> turn(const std::string& text) {
    auto prompt = history_.ask(text, options_);
    if (!prompt) {
      print_error(prompt.error().to_string());
      return {};
    }
    InterruptScope::clear();
    const ThinkingMode mode = options_.thinking;
    CompletionParser parser(mode);
    StreamingDetokenizer detokenizer(*model_.tokenizer);
    const std::vector<TokenId> stops = command_.ignore_eos ? std::vector<TokenId>() : model_.stop_tokens();
    ProgressBar bar("reading", ProgressBar::Unit::kTokens);
    GenerateOptions options;
    options.sampling = sampling_;
    options.max_new_tokens = command_.max_tokens;
    options.stop_tokens = stops;
    options.cancel = &InterruptScope::flag();
    options.on_prefill = [&bar](std::int64_t done, std::int64_t total) {
      done < total ? bar.update(done, total) : bar.clear();
    };
    shown_ = Shown::kNothing;
    Result<> output;
    const auto result = session_.generate(*prompt, options, [&](const SampledToken& token) {
      if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) return true;
      output = show(parser.feed(detokenizer.push(token.id)));
      return output.has_value();
    });
    bar.clear();
    if (output) output = show(parser.feed(detokenizer.finish()));
    if (output) output = show(parser.finish());
    if (output) output = end_answer();
    PIVOT_TRY_VOID(std::move(output));
    if (!result) {
      history_.withdraw();
      if (result.error().code == ErrorCode::kInternal) return fail(result.error());
      print_error(result.error().code == ErrorCode::kContextOverflow
                      ? result.error().to_string() + "; /reset begins a new conversation"
                      : result.error().to_string());
      return {};
    }
    std::vector<TokenId> tokens;
    for (const SampledToken& token : result->tokens) tokens.push_back(token.id);
    history_.answered(tokens, mode);
    return tell(*result, parser.result());
  }

  enum class Shown { kNothing, kReasoning, kContent };

  Result<> show(const std::vector<ParserEvent>& events) {
    if (command_.json) return {};
    std::string text;
    for (const ParserEvent& event : events) {
      const bool reasoning = event.kind == ParserEvent::Kind::kReasoning;
      const Shown kind = reasoning ? Shown::kReasoning : Shown::kContent;
      if (shown_ != kind && !event.text.empty()) {
        if (shown_ == Shown::kReasoning) text += std::string(style_.reset) + "\n\n";
        if (reasoning) text += style_.dim;
        shown_ = kind;
      }
      if (event.kind == ParserEvent::Kind::kToolCallStart) {
        text += "\n[calls " + printable(event.text) + " ";
      } else if (event.kind == ParserEvent::Kind::kToolCallEnd) {
        text += "]";
      } else {
        text += interactive_ ? printable(event.text) : event.text;
      }
    }
    return text.empty() ? Result<>() : write_output(text);
  }

  Result<> end_answer() {
    if (command_.json) return {};
    return write_output(shown_ == Shown::kReasoning ? std::string(style_.reset) + "\n" : "\n");
  }

  Result<> tell(const GenerationResult& result, const ParsedCompletion& parsed) {
    if (command_.json) {
      nlohmann::ordered_json json;
      json["role"] = "assistant";
      json["content"] = parsed.content;
      json["reasoning"] = parsed.reasoning;
      json["finish_reason"] = to_string(result.reason);
      json["timings"] = timings_json(result.timings, model_.load_seconds);
      return write_output(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    }
    if (!interactive_) return {};
    return write_output(fmt::format(
        "{}[{}; context {} of {}]{}\n", style_.dim, statistics_line(result.timings, result.reason),
        format_count(session_.position()), format_count(session_.max_context()), style_.reset));
  }

  // Remarks of the program: part of the conversation on a terminal, noise in a pipe.
  Result<> say(const std::string& text) {
    if (!interactive_) return {};
    return write_output(std::string(style_.dim) + text + std::string(style_.reset));
  }

  const ChatCommand& command_;
  const OpenModel& model_;
  Session& session_;
  SamplingParams sampling_;
  ChatOptions options_;
  ChatHistory history_;
  Style style_;
  bool interactive_ = false;
  Shown shown_ = Shown::kNothing;
};

Result<int> run(const ChatCommand& command) {
  if (command.think != "on" && command.think != "off") {
    return fail(ErrorCode::kInvalidArgument, "--think is on or off; found \"{}\"", command.think);
  }
  if (command.max_tokens < 0) {
    return fail(ErrorCode::kInvalidArgument, "--max-tokens is {}; it is positive, or 0 for no limit",
                command.max_tokens);
  }
  ChatOptions options;
  options.thinking = command.think == "on" ? ThinkingMode::kThinking : ThinkingMode::kChat;
  PIVOT_TRY(options.effort, parse_reasoning_effort(command.effort));
  PIVOT_TRY(const OpenModel model, open_model(command.model, /*wants_tokenizer=*/true));
  PIVOT_TRY(options.encoding, resolve_encoding(command.encoding, model.folder));
  // An effort that this encoding refuses should be told now, not at every turn.
  if (const auto probe =
          encode_chat(Conversation{{ChatMessage::text(ChatRole::kUser, "x")}, {}, {}}, options);
      !probe) {
    return fail(probe.error());
  }
  PIVOT_TRY(SamplingParams sampling,
            resolve_sampling(command.sampling, model.folder, model.weights->config.vocab_size));
  PIVOT_TRY(const auto session, open_session(model, command.model, command.model.max_context));
  return Chat(command, model, *session, std::move(sampling), std::move(options)).run();
}

}  // namespace

Run add_chat(CLI::App& app) {
  auto command = std::make_shared<ChatCommand>();
  add_model_options(app, command->model);
  app.add_option("--system", command->system, "System message")->type_name("TEXT");
  app.add_option("--think", command->think, "on lets the model reason before it answers")
      ->capture_default_str();
  app.add_option("--effort", command->effort, "Reasoning effort: none, low, high or max")
      ->capture_default_str();
  app.add_option("--encoding", command->encoding, "Chat encoding: auto, preview or 0731")
      ->capture_default_str();
  app.add_option("--max-tokens", command->max_tokens, "Longest answer; 0 goes on until the context is full")
      ->capture_default_str();
  add_sampling_options(app, command->sampling);
  app.add_flag("--ignore-eos", command->ignore_eos, "Go on after the end-of-sentence token");
  app.add_flag("--json", command->json, "One JSON object a line for each answer (docs/commands.md)");
  app.footer(std::string("In the chat:\n") + kHelp +
             "Without a terminal, each line of standard input is one message.");
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
