// Completion texts: the first byte chooses the mode, the second a piece size. Chunked and whole must agree;
// what the strict parser accepts, the streaming parser must read alike; complete calls must have JSON
// arguments. The text also goes through the conversation reader and the encoder, which must answer or refuse.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/chat/completion_parser.h"
#include "text/chat/encode.h"
#include "text/chat/python_json.h"

namespace {

using pivot::CompletionParser;
using pivot::ParsedCompletion;
using pivot::ParserEvent;
using pivot::ThinkingMode;

// Rebuilds the result from the events, as a client does.
void replay(ParsedCompletion& seen, const std::vector<ParserEvent>& events) {
  for (const ParserEvent& event : events) {
    switch (event.kind) {
      case ParserEvent::Kind::kReasoning:
        seen.reasoning += event.text;
        break;
      case ParserEvent::Kind::kContent:
        seen.content += event.text;
        break;
      case ParserEvent::Kind::kToolCallStart:
        seen.tool_calls.push_back({event.id, event.text, "", false});
        break;
      case ParserEvent::Kind::kArguments:
        seen.tool_calls.at(event.call).arguments += event.text;
        break;
      case ParserEvent::Kind::kToolCallEnd:
        seen.tool_calls.at(event.call).complete = true;
        break;
    }
  }
}

ParsedCompletion parse(std::string_view text, ThinkingMode mode, std::size_t piece) {
  CompletionParser parser(mode);
  ParsedCompletion seen;
  for (std::size_t at = 0; at < text.size(); at += piece) replay(seen, parser.feed(text.substr(at, piece)));
  replay(seen, parser.finish());
  seen.ended = parser.result().ended;
  seen.malformed = parser.result().malformed;
  PIVOT_CHECK(seen == parser.result(), "events and result differ");
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const ThinkingMode mode = (data[0] & 1) != 0 ? ThinkingMode::kThinking : ThinkingMode::kChat;
  const std::size_t piece = 1 + data[1] % 24;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);

  const ParsedCompletion whole = parse(text, mode, text.size() + 1);
  PIVOT_CHECK(parse(text, mode, piece) == whole, "the result depends on the cuts (pieces of {})", piece);
  for (const auto& call : whole.tool_calls) {
    const bool is_utf8 = static_cast<bool>(pivot::python_json::parse(pivot::python_json::quoted(text)));
    PIVOT_CHECK(!call.complete || !is_utf8 || pivot::python_json::parse(call.arguments),
                "arguments are not JSON: {}", call.arguments);
  }
  // The strict parser also takes a text that breaks off behind a tag; the streaming parser calls that
  // malformed.
  const auto strict = pivot::parse_completion(text, mode);
  if (strict && whole.malformed.empty()) {
    PIVOT_CHECK(*strict == whole, "strict and streaming results differ");
  }

  pivot::ChatOptions options;
  options.thinking = mode;
  const auto prompt = pivot::encode_chat(text, options);
  PIVOT_CHECK(prompt || !prompt.error().message.empty());
  if (const auto value = pivot::python_json::parse(text)) {
    const std::string written = pivot::python_json::dumps(*value);
    const auto again = pivot::python_json::parse(written);
    PIVOT_CHECK(again && pivot::python_json::dumps(*again) == written, "JSON does not read back: {}",
                written);
  }
  return 0;
}
