// /v1/messages: Anthropic's content blocks and named events.
#include <fmt/format.h>

#include "server/api/json_text.h"
#include "server/api/writers.h"

namespace pivot::api {
namespace {

std::string_view stop_reason(const ChoiceEnd& end) {
  switch (end.word) {
    case FinishWord::kStop:
      return "end_turn";
    case FinishWord::kStopText:
      return "stop_sequence";
    case FinishWord::kLength:
      return "max_tokens";
    case FinishWord::kToolCalls:
      return "tool_use";
  }
  return "end_turn";
}

std::string stop_sequence(const ChoiceEnd& end) {
  return end.word == FinishWord::kStopText && !end.stop_text.empty() ? json_quoted(end.stop_text) : "null";
}

// cached tokens are input that was read from a cache; input_tokens are the others.
std::string usage_json(const Usage& usage) {
  return fmt::format(
      R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{}}})",
      usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens);
}

// The arguments of a call that ended early are an open JSON text, which `input` cannot hold.
std::string input_of(const ParsedToolCall& call) { return call.complete ? call.arguments : "{}"; }

class MessagesWriter final : public Writer {
 public:
  std::string begin(const Usage& usage) override {
    return sse("message_start", fmt::format(R"({{"type":"message_start","message":{}}})",
                                            message("[]", "null", "null", usage)));
  }

  std::string delta(std::int32_t, const Delta& delta, const Usage&) override {
    std::string out;
    for (const ParserEvent& event : delta.events) {
      switch (event.kind) {
        case ParserEvent::Kind::kReasoning:
          out += open(Block::kThinking, R"({"type":"thinking","thinking":"","signature":""})");
          out += block_delta(
              fmt::format(R"({{"type":"thinking_delta","thinking":{}}})", json_quoted(event.text)));
          break;
        case ParserEvent::Kind::kContent:
          out += open(Block::kText, R"({"type":"text","text":""})");
          out += block_delta(fmt::format(R"({{"type":"text_delta","text":{}}})", json_quoted(event.text)));
          break;
        case ParserEvent::Kind::kToolCallStart:
          out += close();
          out += open(Block::kTool, fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{{}}}})",
                                                json_quoted(event.id), json_quoted(event.text)));
          break;
        case ParserEvent::Kind::kArguments:
          out += block_delta(
              fmt::format(R"({{"type":"input_json_delta","partial_json":{}}})", json_quoted(event.text)));
          break;
        case ParserEvent::Kind::kToolCallEnd:
          out += close();
          break;
      }
    }
    return out;
  }

  std::string end_choice(std::int32_t, const ChoiceEnd& end, const Usage& usage) override {
    return close() +
           sse("message_delta",
               fmt::format(
                   R"({{"type":"message_delta","delta":{{"stop_reason":"{}","stop_sequence":{}}},"usage":{}}})",
                   stop_reason(end), stop_sequence(end), usage_json(usage)));
  }

  std::string end(const Usage&) override { return sse("message_stop", R"({"type":"message_stop"})"); }
  std::string failure(const ApiError& error) override {
    return sse("error", anthropic_error(error, identity.request_id));
  }
  std::string ping() const override { return sse("ping", R"({"type":"ping"})"); }

  std::string body(const std::vector<ChoiceRecord>& choices, const Usage& usage) override {
    const ChoiceRecord& choice = choices.front();
    std::string blocks;
    const auto add = [&](std::string block) { blocks += (blocks.empty() ? "" : ",") + std::move(block); };
    if (!choice.reasoning.empty()) {
      add(fmt::format(R"({{"type":"thinking","thinking":{},"signature":""}})",
                      json_quoted(choice.reasoning)));
    }
    if (!choice.content.empty())
      add(fmt::format(R"({{"type":"text","text":{}}})", json_quoted(choice.content)));
    for (const ParsedToolCall& call : choice.tool_calls) {
      add(fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})", json_quoted(call.id),
                      json_quoted(call.name), input_of(call)));
    }
    return message("[" + blocks + "]", fmt::format("\"{}\"", stop_reason(choice.end)),
                   stop_sequence(choice.end), usage);
  }

 private:
  enum class Block { kNone, kThinking, kText, kTool };

  std::string message(std::string_view content, std::string_view reason, std::string_view sequence,
                      const Usage& usage) const {
    return fmt::format(
        R"({{"id":{},"type":"message","role":"assistant","model":{},"content":{},"stop_reason":{},"stop_sequence":{},"usage":{}}})",
        json_quoted(identity.id), json_quoted(identity.model), content, reason, sequence, usage_json(usage));
  }

  // Opens a block of this kind unless the open one is.
  std::string open(Block block, std::string_view start) {
    if (block_ == block) return {};
    std::string out = close();
    block_ = block;
    return out + sse("content_block_start",
                     fmt::format(R"({{"type":"content_block_start","index":{},"content_block":{}}})", index_,
                                 start));
  }
  std::string block_delta(std::string_view delta) const {
    return sse("content_block_delta",
               fmt::format(R"({{"type":"content_block_delta","index":{},"delta":{}}})", index_, delta));
  }
  std::string close() {
    if (block_ == Block::kNone) return {};
    block_ = Block::kNone;
    return sse("content_block_stop", fmt::format(R"({{"type":"content_block_stop","index":{}}})", index_++));
  }

  Block block_ = Block::kNone;
  int index_ = 0;
};

}  // namespace

std::unique_ptr<Writer> make_messages_writer(const GenerationRequest&) {
  return std::make_unique<MessagesWriter>();
}

}  // namespace pivot::api
