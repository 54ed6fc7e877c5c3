#include "results.h"

#include <fmt/format.h>
#include <unistd.h>

#include "terminal.h"
#include "text/chat/completion_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::cli {

void add_parsed(nlohmann::ordered_json& json, std::string_view text, ThinkingMode mode) {
  CompletionParser parser(mode);
  parser.feed(text);
  parser.finish();
  const ParsedCompletion& parsed = parser.result();
  json["reasoning"] = parsed.reasoning;
  json["content"] = parsed.content;
  json["tool_calls"] = nlohmann::ordered_json::array();
  for (const ParsedToolCall& call : parsed.tool_calls) {
    json["tool_calls"].push_back(
        {{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}, {"complete", call.complete}});
  }
}

nlohmann::ordered_json tokens_json(const std::vector<SampledToken>& tokens, const Tokenizer& tokenizer,
                                   bool with_logprobs) {
  auto list = nlohmann::ordered_json::array();
  for (const SampledToken& token : tokens) {
    nlohmann::ordered_json entry = {{"id", raw(token.id)}, {"text", tokenizer.decode({&token.id, 1})}};
    if (with_logprobs) {
      entry["logprob"] = token.logprob;
      auto top = nlohmann::ordered_json::array();
      for (const TokenLogprob& other : token.top) {
        top.push_back(
            {{"id", raw(other.id)}, {"text", tokenizer.decode({&other.id, 1})}, {"logprob", other.logprob}});
      }
      entry["top"] = std::move(top);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

nlohmann::ordered_json sampling_json(const SamplingParams& params) {
  return {{"temperature", params.temperature},
          {"top_p", params.top_p},
          {"top_k", params.top_k},
          {"min_p", params.min_p},
          {"seed", params.seed}};
}

nlohmann::ordered_json timings_json(const Timings& timings, double load_seconds) {
  return {{"load_seconds", load_seconds},
          {"prompt_tokens", timings.prompt_tokens},
          {"reused_tokens", timings.reused_tokens},
          {"generated_tokens", timings.generated_tokens},
          {"prefill_seconds", timings.prefill_seconds},
          {"decode_seconds", timings.decode_seconds},
          {"prefill_tokens_per_second", timings.prefill_tokens_per_second()},
          {"decode_tokens_per_second", timings.decode_tokens_per_second()}};
}

std::string statistics_line(const Timings& timings, FinishReason reason) {
  std::string line = fmt::format("prompt {} tokens", timings.prompt_tokens);
  if (timings.reused_tokens > 0) line += fmt::format(" ({} reused)", timings.reused_tokens);
  line += " in " + format_duration(timings.prefill_seconds);
  if (timings.prefill_tokens_per_second() > 0) {
    line += fmt::format(" ({:.1f} tokens/s)", timings.prefill_tokens_per_second());
  }
  line += fmt::format(", answer {} tokens in {}", timings.generated_tokens,
                      format_duration(timings.decode_seconds));
  if (timings.decode_tokens_per_second() > 0) {
    line += fmt::format(" ({:.1f} tokens/s)", timings.decode_tokens_per_second());
  }
  return line + ", " + to_string(reason);
}

void print_statistics(const Timings& timings, FinishReason reason, const SamplingParams& params) {
  const Style style = style_for(STDERR_FILENO);
  std::string line = statistics_line(timings, reason);
  if (params.temperature > 0) line += fmt::format(", seed {}", params.seed);
  std::fprintf(stderr, "%s%s%s\n", std::string(style.dim).c_str(), line.c_str(),
               std::string(style.reset).c_str());
}

}  // namespace pivot::cli
