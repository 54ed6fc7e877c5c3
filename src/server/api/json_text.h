// Small pieces of JSON text that the writers share. Private to them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer.h"

namespace pivot::api {

// A JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_quoted(std::string_view text);
// A finite number; -inf, which JSON cannot say, is -9999.
std::string logprob_text(float logprob);
// [72, 101]: the bytes of a token.
std::string byte_list(std::string_view bytes);
// {"prompt_tokens": ..., ...} of OpenAI's chat and completions.
std::string openai_usage(const Usage& usage);
// [{"token", "logprob", "bytes", "top_logprobs"}]
std::string chat_logprobs(const std::vector<TokenLogprobs>& tokens);
std::string_view openai_finish(FinishWord word);
// "event: NAME\ndata: JSON\n\n"; without a name only the data.
std::string sse(std::string_view name, std::string_view json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace pivot::api
