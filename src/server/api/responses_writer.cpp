// /v1/responses: output items (reasoning, message, function calls) and their events.
#include <fmt/format.h>

#include "server/api/json_text.h"
#include "server/api/writers.h"

namespace pivot::api {
namespace {

std::string usage_json(const Usage& usage) {
  return fmt::format(
      R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
      usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens,
      usage.prompt_tokens + usage.completion_tokens);
}

// One output item as JSON.
struct Item {
  enum class Kind { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text;     // or the arguments
  std::string name;     // of a call
  std::string call_id;  // of a call

  std::string part() const {
    return kind == Kind::kReasoning
               ? fmt::format(R"({{"type":"reasoning_text","text":{}}})", json_quoted(text))
               : fmt::format(R"({{"type":"output_text","text":{},"annotations":[],"logprobs":[]}})",
                             json_quoted(text));
  }
  std::string json(std::string_view status, bool with_content) const {
    switch (kind) {
      case Kind::kReasoning:
        return fmt::format(R"({{"id":{},"type":"reasoning","summary":[],"content":[{}],"status":"{}"}})",
                           json_quoted(id), with_content ? part() : "", status);
      case Kind::kMessage:
        return fmt::format(R"({{"id":{},"type":"message","role":"assistant","status":"{}","content":[{}]}})",
                           json_quoted(id), status, with_content ? part() : "");
      case Kind::kCall:
        return fmt::format(
            R"({{"id":{},"type":"function_call","call_id":{},"name":{},"arguments":{},"status":"{}"}})",
            json_quoted(id), json_quoted(call_id), json_quoted(name),
            with_content ? json_quoted(text) : "\"\"", status);
    }
    return {};
  }
};

class ResponsesWriter final : public Writer {
 public:
  explicit ResponsesWriter(const GenerationRequest& request) : request_(request) {}

  std::string begin(const Usage&) override {
    const std::string started = response("in_progress", "[]", "null", "null", "null");
    // One after the other: each takes the next number.
    std::string out = event("response.created", fmt::format(R"("response":{})", started));
    out += event("response.in_progress", fmt::format(R"("response":{})", started));
    return out;
  }

  std::string delta(std::int32_t, const Delta& delta, const Usage&) override {
    std::string out;
    for (const ParserEvent& piece : delta.events) {
      switch (piece.kind) {
        case ParserEvent::Kind::kReasoning:
          out += open(Item::Kind::kReasoning);
          item_.text += piece.text;
          out += event("response.reasoning_text.delta",
                       place() + fmt::format(R"(,"delta":{})", json_quoted(piece.text)));
          break;
        case ParserEvent::Kind::kContent:
          out += open(Item::Kind::kMessage);
          item_.text += piece.text;
          out += event("response.output_text.delta",
                       place() + fmt::format(R"(,"delta":{},"logprobs":[])", json_quoted(piece.text)));
          break;
        case ParserEvent::Kind::kToolCallStart:
          out += close("completed");
          out += open(Item::Kind::kCall, piece.text, piece.id);
          break;
        case ParserEvent::Kind::kArguments:
          item_.text += piece.text;
          out += event("response.function_call_arguments.delta",
                       item_place() + fmt::format(R"(,"delta":{})", json_quoted(piece.text)));
          break;
        case ParserEvent::Kind::kToolCallEnd:
          out += close("completed");
          break;
      }
    }
    return out;
  }

  std::string end_choice(std::int32_t, const ChoiceEnd& end, const Usage&) override {
    end_ = end;
    return close(end.word == FinishWord::kLength ? "incomplete" : "completed");
  }

  std::string end(const Usage& usage) override {
    const bool cut = end_.word == FinishWord::kLength;
    return event(cut ? "response.incomplete" : "response.completed",
                 fmt::format(R"("response":{})", finished("[" + items_ + "]", cut, usage)));
  }

  std::string failure(const ApiError& error) override {
    const std::string object =
        fmt::format(R"({{"code":"server_error","message":{}}})", json_quoted(quotable(error.message, 1500)));
    return event("response.failed", fmt::format(R"("response":{})", response("failed", "[" + items_ + "]",
                                                                             object, "null", "null")));
  }

  std::string body(const std::vector<ChoiceRecord>& choices, const Usage& usage) override {
    const ChoiceRecord& choice = choices.front();
    const bool cut = choice.end.word == FinishWord::kLength;
    const std::string_view status = cut ? "incomplete" : "completed";
    if (!choice.reasoning.empty())
      add_item({Item::Kind::kReasoning, next_id("rs"), choice.reasoning, {}, {}}, "completed");
    if (!choice.content.empty()) {
      add_item({Item::Kind::kMessage, next_id("msg"), choice.content, {}, {}},
               choice.tool_calls.empty() ? status : "completed");
    }
    for (const ParsedToolCall& call : choice.tool_calls) {
      add_item({Item::Kind::kCall, next_id("fc"), call.arguments, call.name, call.id},
               call.complete ? "completed" : "incomplete");
    }
    return finished("[" + items_ + "]", cut, usage);
  }

 private:
  std::string event(std::string_view type, const std::string& fields) {
    return sse(type, fmt::format(R"({{"type":"{}","sequence_number":{},{}}})", type, sequence_++, fields));
  }

  std::string next_id(std::string_view prefix) {
    const std::string_view tail =
        std::string_view(identity.id).substr(std::min<std::size_t>(identity.id.size(), 5));
    return fmt::format("{}_{}_{}", prefix, tail, index_);
  }

  std::string item_place() const {
    return fmt::format(R"("item_id":{},"output_index":{})", json_quoted(item_.id), index_);
  }
  std::string place() const { return item_place() + R"(,"content_index":0)"; }

  // Opens an item of this kind unless the open one is.
  std::string open(Item::Kind kind, std::string_view name = {}, std::string_view call_id = {}) {
    if (open_ && item_.kind == kind && kind != Item::Kind::kCall) return {};
    std::string out = close("completed");
    open_ = true;
    const std::string_view prefix = kind == Item::Kind::kReasoning ? "rs"
                                    : kind == Item::Kind::kMessage ? "msg"
                                                                   : "fc";
    item_ = {kind, next_id(prefix), {}, std::string(name), std::string(call_id)};
    out += event("response.output_item.added",
                 fmt::format(R"("output_index":{},"item":{})", index_, item_.json("in_progress", false)));
    if (kind != Item::Kind::kCall) {
      out += event("response.content_part.added", place() + fmt::format(R"(,"part":{})", item_.part()));
    }
    return out;
  }

  std::string close(std::string_view status) {
    if (!open_) return {};
    open_ = false;
    std::string out;
    if (item_.kind == Item::Kind::kCall) {
      out += event("response.function_call_arguments.done",
                   item_place() + fmt::format(R"(,"name":{},"arguments":{})", json_quoted(item_.name),
                                              json_quoted(item_.text)));
    } else {
      const bool is_text = item_.kind == Item::Kind::kMessage;
      out += event(is_text ? "response.output_text.done" : "response.reasoning_text.done",
                   place() + fmt::format(R"(,"text":{}{})", json_quoted(item_.text),
                                         is_text ? R"(,"logprobs":[])" : ""));
      out += event("response.content_part.done", place() + fmt::format(R"(,"part":{})", item_.part()));
    }
    out += event("response.output_item.done",
                 fmt::format(R"("output_index":{},"item":{})", index_, item_.json(status, true)));
    add_item(item_, status);
    return out;
  }

  void add_item(const Item& item, std::string_view status) {
    if (!items_.empty()) items_ += ',';
    items_ += item.json(status, true);
    ++index_;
  }

  std::string finished(const std::string& items, bool cut, const Usage& usage) const {
    return response(cut ? "incomplete" : "completed", items, "null",
                    cut ? R"({"reason":"max_output_tokens"})" : "null", usage_json(usage));
  }

  std::string response(std::string_view status, std::string_view output, std::string_view error,
                       std::string_view incomplete, std::string_view usage) const {
    const ChatPrompt* prompt = request_.chat();
    return fmt::format(
        R"({{"id":{},"object":"response","created_at":{},"status":"{}","error":{},"incomplete_details":{},"instructions":{},)"
        R"("max_output_tokens":{},"model":{},"output":{},"parallel_tool_calls":{},"previous_response_id":null,)"
        R"("reasoning":{{"effort":null,"summary":null}},"store":false,"temperature":{},"text":{{"format":{}}},)"
        R"("tool_choice":{},"tools":{},"top_p":{},"truncation":"disabled","usage":{},"user":null,"metadata":{}}})",
        json_quoted(identity.id), identity.created, status, error, incomplete,
        request_.instructions.empty() ? "null" : json_quoted(request_.instructions),
        request_.sampling.max_tokens > 0 ? std::to_string(request_.sampling.max_tokens) : "null",
        json_quoted(identity.model), output, prompt != nullptr && prompt->parallel_tool_calls,
        identity.temperature, request_.text_format_json, request_.tool_choice_json, request_.tools_json,
        identity.top_p, usage, request_.metadata_json);
  }

  const GenerationRequest& request_;
  std::uint64_t sequence_ = 0;
  int index_ = 0;  // of the open or next item
  bool open_ = false;
  Item item_;
  std::string items_;  // the closed ones, as JSON
  ChoiceEnd end_;
};

}  // namespace

std::unique_ptr<Writer> make_responses_writer(const GenerationRequest& request) {
  return std::make_unique<ResponsesWriter>(request);
}

}  // namespace pivot::api
