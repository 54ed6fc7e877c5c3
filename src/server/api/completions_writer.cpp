// /v1/completions.
#include <fmt/format.h>

#include "server/api/json_text.h"
#include "server/api/writers.h"
#include "text/tokenizer/utf8.h"

namespace pivot::api {
namespace {

std::size_t characters(std::string_view bytes) {
  std::size_t count = 0;
  for (const char c : bytes) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

class CompletionsWriter final : public Writer {
 public:
  explicit CompletionsWriter(const GenerationRequest& request) : request_(request) {}

  std::string begin(const Usage&) override {
    if (!request_.echo) return {};
    std::string out;
    const auto prompts = static_cast<std::int32_t>(identity.echoes.size());
    for (std::int32_t choice = 0; choice < prompts * request_.sampling.n; ++choice) {
      out += chunk(choice, echo_of(choice), logprobs(prompt_logprobs_of(choice), 0), "null", {});
    }
    return out;
  }

  std::string delta(std::int32_t choice, const Delta& delta, const Usage& usage) override {
    std::string text;
    for (const ParserEvent& event : delta.events) text += event.text;
    std::string lists = "null";
    if (request_.sampling.top_logprobs >= 0) {
      std::size_t& offset = offset_of(choice);
      lists = logprobs(delta.content_logprobs, offset);
      for (const TokenLogprobs& token : delta.content_logprobs) offset += characters(token.bytes);
    }
    return chunk(choice, text, lists, "null", usage);
  }

  std::string end_choice(std::int32_t choice, const ChoiceEnd& end, const Usage& usage) override {
    return chunk(choice, {}, "null", fmt::format("\"{}\"", openai_finish(end.word)), usage);
  }

  std::string end(const Usage& usage) override {
    std::string out;
    if (request_.include_usage)
      out = sse({}, fmt::format(R"({}"choices":[],"usage":{}}})", head(), openai_usage(usage)));
    return out + std::string(kSseDone);
  }

  std::string failure(const ApiError& error) override {
    return sse({}, openai_error(error)) + std::string(kSseDone);
  }

  std::string body(const std::vector<ChoiceRecord>& choices, const Usage& usage) override {
    std::string out = head() + "\"choices\":[";
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const ChoiceRecord& choice = choices[i];
      const auto index = static_cast<std::int32_t>(i);
      if (i > 0) out += ',';
      std::vector<TokenLogprobs> tokens;
      if (request_.echo) tokens = prompt_logprobs_of(index);
      tokens.insert(tokens.end(), choice.content_logprobs.begin(), choice.content_logprobs.end());
      const std::string lists = request_.sampling.top_logprobs >= 0 ? logprobs(tokens, 0) : "null";
      out +=
          fmt::format(R"({{"text":{},"index":{},"logprobs":{},"finish_reason":"{}"}})",
                      json_quoted(echo_of(index) + choice.content), i, lists, openai_finish(choice.end.word));
    }
    return out + fmt::format(R"(],"usage":{}}})", openai_usage(usage));
  }

 private:
  std::string head() const {
    return fmt::format(
        R"({{"id":{},"object":"text_completion","created":{},"model":{},"system_fingerprint":{},)",
        json_quoted(identity.id), identity.created, json_quoted(identity.model),
        json_quoted(identity.fingerprint));
  }

  std::size_t prompt_of(std::int32_t choice) const {
    return static_cast<std::size_t>(choice / request_.sampling.n);
  }
  std::string echo_of(std::int32_t choice) const {
    if (!request_.echo || prompt_of(choice) >= identity.echoes.size()) return {};
    return identity.echoes[prompt_of(choice)];
  }
  std::vector<TokenLogprobs> prompt_logprobs_of(std::int32_t choice) const {
    if (prompt_of(choice) >= identity.prompt_logprobs.size()) return {};
    return identity.prompt_logprobs[prompt_of(choice)];
  }

  std::size_t& offset_of(std::int32_t choice) {
    const auto index = static_cast<std::size_t>(choice);
    while (offsets_.size() <= index) {
      offsets_.push_back(characters(echo_of(static_cast<std::int32_t>(offsets_.size()))));
    }
    return offsets_[index];
  }

  // The old parallel lists. The first token of a prompt has no probability: null.
  static std::string logprobs(const std::vector<TokenLogprobs>& tokens, std::size_t offset) {
    if (tokens.empty()) return "null";
    std::string names, values, tops, offsets;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const TokenLogprobs& token = tokens[i];
      const std::string_view comma = i > 0 ? "," : "";
      names += fmt::format("{}{}", comma, json_quoted(token.bytes));
      values += fmt::format("{}{}", comma, token.is_first ? "null" : logprob_text(token.logprob));
      tops += comma;
      if (token.is_first) {
        tops += "null";
      } else {
        tops += '{';
        for (std::size_t j = 0; j < token.top.size(); ++j) {
          if (j > 0) tops += ',';
          tops += fmt::format("{}:{}", json_quoted(token.top[j].bytes), logprob_text(token.top[j].logprob));
        }
        tops += '}';
      }
      offsets += fmt::format("{}{}", comma, offset);
      offset += characters(token.bytes);
    }
    return fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                       names, values, tops, offsets);
  }

  std::string chunk(std::int32_t choice, std::string_view text, std::string_view lists,
                    std::string_view finish, const Usage& usage) const {
    std::string json =
        head() + fmt::format(R"("choices":[{{"text":{},"index":{},"logprobs":{},"finish_reason":{}}}])",
                             json_quoted(text), choice, lists, finish);
    if (request_.continuous_usage) {
      json += fmt::format(R"(,"usage":{})", openai_usage(usage));
    } else if (request_.include_usage) {
      json += R"(,"usage":null)";
    }
    return sse({}, json + "}");
  }

  const GenerationRequest& request_;
  std::vector<std::size_t> offsets_;  // in characters, by choice
};

}  // namespace

std::unique_ptr<Writer> make_completions_writer(const GenerationRequest& request) {
  return std::make_unique<CompletionsWriter>(request);
}

}  // namespace pivot::api
