// /v1/chat/completions.
#include <fmt/format.h>

#include "server/api/json_text.h"
#include "server/api/writers.h"

namespace pivot::api {
namespace {

class ChatWriter final : public Writer {
 public:
  explicit ChatWriter(const GenerationRequest& request) : request_(request) {}

  std::string begin(const Usage&) override {
    std::string out;
    for (std::int32_t choice = 0; choice < request_.sampling.n; ++choice) {
      out += chunk(choice, R"({"role":"assistant","content":""})", {}, "null", {});
    }
    return out;
  }

  std::string delta(std::int32_t choice, const Delta& delta, const Usage& usage) override {
    std::string out;
    std::string logprobs = logprobs_of(delta);
    for (std::size_t i = 0; i < delta.events.size(); ++i) {
      const std::string text = event_delta(delta.events[i]);
      if (text.empty()) continue;
      out += chunk(choice, text, logprobs, "null", usage);
      logprobs.clear();  // once
    }
    return out;
  }

  std::string end_choice(std::int32_t choice, const ChoiceEnd& end, const Usage& usage) override {
    return chunk(choice, "{}", {}, fmt::format("\"{}\"", openai_finish(end.word)), usage, stop_reason(end));
  }

  std::string end(const Usage& usage) override {
    std::string out;
    if (request_.include_usage) {
      out = sse({}, fmt::format(R"({}"choices":[],"usage":{}}})", head("chat.completion.chunk"),
                                openai_usage(usage)));
    }
    return out + std::string(kSseDone);
  }

  std::string failure(const ApiError& error) override {
    return sse({}, openai_error(error)) + std::string(kSseDone);
  }

  std::string body(const std::vector<ChoiceRecord>& choices, const Usage& usage) override {
    std::string out = head("chat.completion") + "\"choices\":[";
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const ChoiceRecord& choice = choices[i];
      if (i > 0) out += ',';
      out += fmt::format(R"({{"index":{},"message":{},"logprobs":{},"finish_reason":"{}","stop_reason":{}}})",
                         i, message(choice), record_logprobs(choice), openai_finish(choice.end.word),
                         stop_reason(choice.end));
    }
    return out + fmt::format(R"(],"usage":{}}})", openai_usage(usage));
  }

 private:
  std::string head(std::string_view object) const {
    return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{},)",
                       json_quoted(identity.id), object, identity.created, json_quoted(identity.model),
                       json_quoted(identity.fingerprint));
  }

  static std::string stop_reason(const ChoiceEnd& end) {
    if (end.stop_token_id) return std::to_string(*end.stop_token_id);
    return end.word == FinishWord::kStopText ? json_quoted(end.stop_text) : "null";
  }

  std::string chunk(std::int32_t choice, std::string_view delta, std::string_view logprobs,
                    std::string_view finish, const Usage& usage, std::string_view stop = {}) const {
    std::string json = head("chat.completion.chunk");
    json += fmt::format(R"("choices":[{{"index":{},"delta":{},"logprobs":{},"finish_reason":{})", choice,
                        delta, logprobs.empty() ? "null" : logprobs, finish);
    if (!stop.empty()) json += fmt::format(R"(,"stop_reason":{})", stop);
    json += "}]";
    if (request_.continuous_usage) {
      json += fmt::format(R"(,"usage":{})", openai_usage(usage));
    } else if (request_.include_usage) {
      json += R"(,"usage":null)";
    }
    return sse({}, json + "}");
  }

  static std::string event_delta(const ParserEvent& event) {
    switch (event.kind) {
      case ParserEvent::Kind::kReasoning:
        return fmt::format(R"({{"reasoning_content":{}}})", json_quoted(event.text));
      case ParserEvent::Kind::kContent:
        return fmt::format(R"({{"content":{}}})", json_quoted(event.text));
      case ParserEvent::Kind::kToolCallStart:
        return fmt::format(
            R"({{"tool_calls":[{{"index":{},"id":{},"type":"function","function":{{"name":{},"arguments":""}}}}]}})",
            event.call, json_quoted(event.id), json_quoted(event.text));
      case ParserEvent::Kind::kArguments:
        return fmt::format(R"({{"tool_calls":[{{"index":{},"function":{{"arguments":{}}}}}]}})", event.call,
                           json_quoted(event.text));
      case ParserEvent::Kind::kToolCallEnd:
        return {};
    }
    return {};
  }

  static std::string logprobs_object(const std::vector<TokenLogprobs>& content,
                                     const std::vector<TokenLogprobs>& reasoning) {
    std::string out = fmt::format(R"({{"content":{},"refusal":null)", chat_logprobs(content));
    if (!reasoning.empty()) out += fmt::format(R"(,"reasoning_content":{})", chat_logprobs(reasoning));
    return out + "}";
  }

  std::string logprobs_of(const Delta& delta) const {
    if (delta.content_logprobs.empty() && delta.reasoning_logprobs.empty()) return {};
    return logprobs_object(delta.content_logprobs, delta.reasoning_logprobs);
  }

  std::string record_logprobs(const ChoiceRecord& choice) const {
    if (request_.sampling.top_logprobs < 0) return "null";
    return logprobs_object(choice.content_logprobs, choice.reasoning_logprobs);
  }

  static std::string message(const ChoiceRecord& choice) {
    const bool only_calls = choice.content.empty() && !choice.tool_calls.empty();
    std::string out = fmt::format(R"({{"role":"assistant","content":{},"refusal":null)",
                                  only_calls ? "null" : json_quoted(choice.content));
    if (!choice.reasoning.empty())
      out += fmt::format(R"(,"reasoning_content":{})", json_quoted(choice.reasoning));
    if (!choice.tool_calls.empty()) {
      out += R"(,"tool_calls":[)";
      for (std::size_t i = 0; i < choice.tool_calls.size(); ++i) {
        const ParsedToolCall& call = choice.tool_calls[i];
        if (i > 0) out += ',';
        out += fmt::format(R"({{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                           json_quoted(call.id), json_quoted(call.name), json_quoted(call.arguments));
      }
      out += ']';
    }
    return out + "}";
  }

  const GenerationRequest& request_;
};

}  // namespace

std::unique_ptr<Writer> make_chat_writer(const GenerationRequest& request) {
  return std::make_unique<ChatWriter>(request);
}

std::string_view id_prefix(Api api) {
  switch (api) {
    case Api::kChat:
      return "chatcmpl-";
    case Api::kCompletions:
      return "cmpl-";
    case Api::kResponses:
      return "resp_";
    case Api::kMessages:
      return "msg_";
  }
  return "";
}

std::unique_ptr<Writer> make_writer(const GenerationRequest& request, AnswerIdentity identity) {
  std::unique_ptr<Writer> writer;
  switch (request.api) {
    case Api::kChat:
      writer = make_chat_writer(request);
      break;
    case Api::kCompletions:
      writer = make_completions_writer(request);
      break;
    case Api::kResponses:
      writer = make_responses_writer(request);
      break;
    case Api::kMessages:
      writer = make_messages_writer(request);
      break;
  }
  writer->identity = std::move(identity);
  return writer;
}

}  // namespace pivot::api
