// Text of an answer, cut anywhere, through stop strings, parser and an API's writer: every event is JSON,
// what a stream says adds up to what a whole body says, and nothing of a stop string gets out.
//
// The first byte chooses thinking and the size of the pieces, the second the size of the stop string, which
// follows, and the API.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/api/answer.h"
#include "server/api/writer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace {

using nlohmann::json;

void require(bool condition) {
  if (!condition) std::abort();
}

// Only the identity of a tokenizer is needed: the text is given.
const pivot::Tokenizer& tokenizer() {
  static const pivot::Tokenizer instance = [] {
    json vocab = json::object();
    int id = 0;
    for (int byte = 0; byte < 256; ++byte) {
      // The byte-level alphabet: printable Latin-1 stands for itself, the rest is U+0100 and on.
      const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      static int next = 0x100;
      std::string text;
      pivot::utf8::append(text, static_cast<char32_t>(plain ? byte : next++));
      vocab[text] = id++;
    }
    const json file = {
        {"version", "1.0"},
        {"added_tokens", json::array()},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}},
        {"post_processor", nullptr},
        {"decoder",
         {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
    auto parsed = pivot::Tokenizer::parse(file.dump(), "fuzz");
    require(parsed.has_value());
    return *std::move(parsed);
  }();
  return instance;
}

struct Played {
  std::string content;
  std::string reasoning;
  std::size_t calls = 0;
};

Played play(pivot::api::Api api, std::string_view text, std::size_t piece, bool thinking,
            const std::string& stop) {
  pivot::api::GenerationRequest request;
  request.api = api;
  if (api == pivot::api::Api::kCompletions) {
    request.prompt = std::vector<pivot::api::TextPrompt>(1);
  } else {
    request.prompt = pivot::api::ChatPrompt{};
  }
  const auto writer = pivot::api::make_writer(request, {});
  pivot::api::AnswerOptions options;
  options.is_chat = api != pivot::api::Api::kCompletions;
  options.thinking = thinking ? pivot::ThinkingMode::kThinking : pivot::ThinkingMode::kChat;
  pivot::api::ChoiceAnswer answer(tokenizer(), options);
  auto stops =
      pivot::StopStrings::create(stop.empty() ? std::vector<std::string>() : std::vector<std::string>{stop});
  require(stops.has_value());
  pivot::utf8::Repair repair;

  pivot::api::Usage usage;
  std::string stream = writer->begin(usage);
  const auto add = [&](std::string_view released) {
    answer.token({}, released, false);
    const pivot::api::Delta delta = answer.take();
    if (!delta.empty()) stream += writer->delta(0, delta, usage);
  };
  for (std::size_t at = 0; at < text.size() && !stops->matched(); at += piece) {
    std::string whole;
    repair.push(text.substr(at, piece), whole);
    add(stops->feed(whole));
  }
  std::string rest;
  repair.finish(rest);
  answer.finish(stops->feed(rest) + stops->finish());
  const pivot::api::Delta delta = answer.take(true);
  if (!delta.empty()) stream += writer->delta(0, delta, usage);
  pivot::api::ChoiceRecord record;
  record.end.word = answer.finish_word(false, stops->matched());
  stream += writer->end_choice(0, record.end, usage) + writer->end(usage);

  std::string_view left = stream;
  while (!left.empty()) {
    const std::size_t end = left.find("\n\n");
    require(end != std::string_view::npos);
    const std::string_view event = left.substr(0, end);
    left.remove_prefix(end + 2);
    const std::size_t data = event.find("data: ");
    require(data != std::string_view::npos);
    if (event.substr(data + 6) != "[DONE]") require(json::accept(event.substr(data + 6)));
  }
  record.content = answer.content();
  record.reasoning = answer.reasoning();
  record.tool_calls = answer.tool_calls();
  require(json::accept(writer->body({record}, usage)));
  for (const auto& call : record.tool_calls) require(!call.complete || json::accept(call.arguments));
  // Text between reasoning and content is not the client's: a stop string may have stood across it.
  if (!stop.empty() && !thinking && record.tool_calls.empty())
    require(record.content.find(stop) == std::string::npos);
  return {record.content, record.reasoning, record.tool_calls.size()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const bool thinking = (data[0] & 1) != 0;
  const std::size_t piece = 1 + data[0] / 2 % 40;
  const std::size_t stop_size = std::min<std::size_t>(data[1] % 8, size - 2);
  const std::string stop = pivot::utf8::repaired({reinterpret_cast<const char*>(data) + 2, stop_size});
  const std::string_view text(reinterpret_cast<const char*>(data) + 2 + stop_size, size - 2 - stop_size);
  // One API for an input: all four on each would only make a quarter as many inputs.
  using pivot::api::Api;
  constexpr std::array kApis = {Api::kChat, Api::kMessages, Api::kResponses, Api::kCompletions};
  const Api api = kApis[data[1] / 8 % kApis.size()];
  const Played pieces = play(api, text, piece, thinking, stop);
  const Played whole = play(api, text, std::max<std::size_t>(1, text.size()), thinking, stop);
  require(pieces.content == whole.content && pieces.reasoning == whole.reasoning &&
          pieces.calls == whole.calls);
  return 0;
}
