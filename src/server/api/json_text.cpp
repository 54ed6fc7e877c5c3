#include "server/api/json_text.h"

#include <fmt/format.h>

#include <cmath>

#include "text/chat/python_json.h"
#include "text/tokenizer/utf8.h"

namespace pivot::api {

std::string json_quoted(std::string_view text) {
  return utf8::is_valid(text) ? python_json::quoted(text) : python_json::quoted(utf8::repaired(text));
}

std::string logprob_text(float logprob) {
  if (!std::isfinite(logprob)) return "-9999.0";
  return fmt::format("{}", logprob);
}

std::string byte_list(std::string_view bytes) {
  std::string out = "[";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(static_cast<unsigned char>(bytes[i]));
  }
  return out + "]";
}

std::string openai_usage(const Usage& usage) {
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}},"completion_tokens_details":{{"reasoning_tokens":{}}}}})",
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
      usage.cached_tokens, usage.reasoning_tokens);
}

std::string chat_logprobs(const std::vector<TokenLogprobs>& tokens) {
  std::string out = "[";
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const TokenLogprobs& token = tokens[i];
    if (i > 0) out += ',';
    out += fmt::format(R"({{"token":{},"logprob":{},"bytes":{},"top_logprobs":[)", json_quoted(token.bytes),
                       logprob_text(token.logprob), byte_list(token.bytes));
    for (std::size_t j = 0; j < token.top.size(); ++j) {
      const AlternativeToken& other = token.top[j];
      if (j > 0) out += ',';
      out += fmt::format(R"({{"token":{},"logprob":{},"bytes":{}}})", json_quoted(other.bytes),
                         logprob_text(other.logprob), byte_list(other.bytes));
    }
    out += "]}";
  }
  return out + "]";
}

std::string_view openai_finish(FinishWord word) {
  switch (word) {
    case FinishWord::kLength:
      return "length";
    case FinishWord::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

std::string sse(std::string_view name, std::string_view json) {
  if (name.empty()) return fmt::format("data: {}\n\n", json);
  return fmt::format("event: {}\ndata: {}\n\n", name, json);
}

}  // namespace pivot::api
