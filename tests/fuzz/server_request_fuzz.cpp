// Bodies of requests: every reader on every text, then the prompt of what was taken. Nothing may crash, and
// an error must fit into its limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/api/request.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const pivot::api::ApiError& error) {
  require(error.status >= 400 && error.status < 500 && !error.message.empty());
  require(pivot::api::openai_error(error).size() < 4096);
  require(pivot::api::anthropic_error(error, "req_0").size() < 4096);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto body = pivot::api::parse_body(text);
  if (!body) {
    check(body.error());
    return 0;
  }
  using pivot::api::Api;
  for (const Api api : {Api::kChat, Api::kCompletions, Api::kResponses, Api::kMessages}) {
    const auto request = pivot::api::read_generation_request(api, *body);
    if (!request) {
      check(request.error());
      continue;
    }
    const pivot::api::ChatPrompt* chat = request->chat();
    if (chat == nullptr) continue;
    for (const auto mode : {pivot::ThinkingMode::kChat, pivot::ThinkingMode::kThinking}) {
      pivot::ChatOptions options;
      options.thinking = mode;
      static_cast<void>(pivot::encode_chat(chat->conversation, options));
    }
  }
  if (const auto tokenize = pivot::api::read_tokenize_request(*body); !tokenize) check(tokenize.error());
  if (const auto detokenize = pivot::api::read_detokenize_request(*body); !detokenize)
    check(detokenize.error());
  return 0;
}
