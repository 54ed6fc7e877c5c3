// How answers are told: the JSON members that commands share, and the statistics line.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "engine/session.h"
#include "text/chat/encode.h"

namespace pivot {
class Tokenizer;
}

namespace pivot::cli {

// "reasoning", "content", "tool_calls" of an answer to a chat prompt.
void add_parsed(nlohmann::ordered_json& json, std::string_view text, ThinkingMode mode);
// [{"id", "text" [, "logprob", "top": [{"id", "logprob"}]]}]; `text` is the token's bytes, U+FFFD where they
// are not whole characters.
nlohmann::ordered_json tokens_json(const std::vector<SampledToken>& tokens, const Tokenizer& tokenizer,
                                   bool with_logprobs);
nlohmann::ordered_json sampling_json(const SamplingParams& params);
nlohmann::ordered_json timings_json(const Timings& timings, double load_seconds);

// "prompt 34 tokens in 0.2 s (162 tokens/s), answer 58 tokens in 1.9 s (30.2 tokens/s), stop".
std::string statistics_line(const Timings& timings, FinishReason reason);
// That line on standard error, with the seed where one was drawn.
void print_statistics(const Timings& timings, FinishReason reason, const SamplingParams& params);

}  // namespace pivot::cli
