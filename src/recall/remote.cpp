#include "recall/remote.h"

#include <nlohmann/json.hpp>

#include "recall/http_client.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestLine = std::size_t{4} << 20;
constexpr std::size_t kLongestText = std::size_t{1} << 20;
constexpr std::size_t kQuoted = 120;  // bytes of an answer that an error quotes

std::string quote(std::string_view text) {
  std::string quoted;
  for (const char c : text.substr(0, kQuoted))
    quoted += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e ? '?' : c;
  return text.size() > kQuoted ? quoted + "..." : quoted;
}

// ".../v1", however the user wrote it.
std::string api_root(std::string url) {
  while (!url.empty() && url.back() == '/') url.pop_back();
  const bool versioned = url.size() > 3 && url.compare(url.size() - 3, 3, "/v1") == 0;
  return versioned ? url : url + "/v1";
}

std::int64_t integer(const Json& from, const char* name) {
  const auto found = from.find(name);
  return found != from.end() && found->is_number_integer() ? found->get<std::int64_t>() : -1;
}

// The message of an OpenAI-style error body, or the body itself.
std::string server_message(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    const auto error = json.find("error");
    if (error != json.end() && error->is_object() && error->contains("message") &&
        (*error)["message"].is_string())
      return (*error)["message"].get<std::string>();
    if (json.contains("message") && json["message"].is_string()) return json["message"].get<std::string>();
  }
  return body.empty() ? "no text" : quote(body);
}

Result<> check_status(int status, const std::string& url, std::string_view body) {
  if (status >= 200 && status < 300) return {};
  const std::string what = fmt::format("{} answered {}: {}", url, status, server_message(body));
  if (status == 401 || status == 403) return fail(ErrorCode::kPermission, "{}; give --api-key", what);
  if (status == 404) return fail(ErrorCode::kInvalidArgument, "{}; see --url and --served-model", what);
  return fail(ErrorCode::kUnavailable, "{}", what);
}

std::vector<std::string> headers_of(const RemoteOptions& options) {
  std::vector<std::string> headers = {"Content-Type: application/json",
                                      "Accept: text/event-stream, application/json"};
  if (!options.api_key.empty()) headers.push_back("Authorization: Bearer " + options.api_key);
  return headers;
}

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What the server says of itself against what was sent and seen.
std::string remarks_on(const Completion& c, const Case& test, PromptForm form) {
  std::string remarks;
  const auto add = [&](const std::string& remark) { remarks += (remarks.empty() ? "" : "; ") + remark; };
  const auto sent = static_cast<std::int64_t>(test.prompt.size());
  if (form == PromptForm::kIds && c.prompt_tokens >= 0 && c.prompt_tokens != sent)
    add(fmt::format("usage says {} prompt tokens, {} were sent", c.prompt_tokens, sent));
  if (c.completion_tokens > test.answer_tokens)
    add(fmt::format("usage says {} generated tokens, at most {} were asked for", c.completion_tokens,
                    test.answer_tokens));
  if (c.completion_tokens == 0 && !c.text.empty()) add("usage says that nothing was generated");
  if (c.completion_tokens >= 0 && c.pieces > c.completion_tokens + 1)
    add(fmt::format("usage says {} generated tokens, {} pieces came", c.completion_tokens, c.pieces));
  return remarks;
}

}  // namespace

Result<PromptForm> parse_prompt_form(std::string_view name) {
  if (name == "ids") return PromptForm::kIds;
  if (name == "text") return PromptForm::kText;
  return fail(ErrorCode::kInvalidArgument, "--send is ids or text; found \"{}\"", name);
}

Result<> CompletionReader::feed(std::string_view piece, double now_seconds) {
  pending_ += piece;
  for (;;) {
    const std::size_t end = pending_.find('\n');
    if (end == std::string::npos) break;
    std::string text = pending_.substr(0, end);
    pending_.erase(0, end + 1);
    if (!text.empty() && text.back() == '\r') text.pop_back();
    // A whole JSON answer may be spread over lines: it is read at the end.
    if (!streamed_ && text.rfind("data:", 0) != 0 && text.rfind(':', 0) != 0 &&
        text.rfind("event:", 0) != 0 && !text.empty()) {
      pending_ = text + "\n" + pending_;
      break;
    }
    PIVOT_TRY_VOID(line(text, now_seconds));
  }
  if (pending_.size() > kLongestLine)
    return fail(ErrorCode::kInvalidData, "a line of more than {} bytes came: \"{}\"", kLongestLine,
                quote(pending_));
  return {};
}

Result<> CompletionReader::line(std::string_view line, double now_seconds) {
  if (line.empty() || line.front() == ':' || line.rfind("event:", 0) == 0 || line.rfind("id:", 0) == 0 ||
      line.rfind("retry:", 0) == 0)
    return {};
  if (line.rfind("data:", 0) != 0)
    return fail(ErrorCode::kInvalidData, "the stream holds a line that is no event: \"{}\"", quote(line));
  streamed_ = true;
  line.remove_prefix(5);
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  if (line == "[DONE]") {
    done_ = true;
    return {};
  }
  return event(line, now_seconds);
}

Result<> CompletionReader::event(std::string_view text, double now_seconds) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return fail(ErrorCode::kInvalidData, "an event is no JSON object: \"{}\"", quote(text));
  if (json.contains("error"))
    return fail(ErrorCode::kUnavailable, "the server reports: {}", server_message(text));
  const auto usage = json.find("usage");
  if (usage != json.end() && usage->is_object()) {
    completion_.prompt_tokens = integer(*usage, "prompt_tokens");
    completion_.completion_tokens = integer(*usage, "completion_tokens");
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array())
    return fail(ErrorCode::kInvalidData, "an event has no choices: \"{}\"", quote(text));
  for (const Json& choice : *choices) {
    if (!choice.is_object())
      return fail(ErrorCode::kInvalidData, "a choice is no object: \"{}\"", quote(text));
    const auto piece = choice.find("text");
    if (piece != choice.end() && piece->is_string() && !piece->get_ref<const std::string&>().empty()) {
      if (completion_.pieces++ == 0) completion_.first_seconds = now_seconds;
      completion_.text += piece->get_ref<const std::string&>();
      if (completion_.text.size() > kLongestText)
        return fail(ErrorCode::kInvalidData, "the answer has more than {} bytes", kLongestText);
    }
    const auto reason = choice.find("finish_reason");
    if (reason != choice.end() && reason->is_string()) completion_.finish_reason = *reason;
  }
  return {};
}

Result<Completion> CompletionReader::finish(double now_seconds) {
  if (!streamed_) {
    if (pending_.empty()) return fail(ErrorCode::kInvalidData, "the answer is empty");
    PIVOT_TRY_VOID(event(pending_, now_seconds));
    pending_.clear();
  } else if (!pending_.empty()) {
    PIVOT_TRY_VOID(line(std::exchange(pending_, {}), now_seconds));
  }
  if (!done_ && completion_.finish_reason.empty())
    return fail(ErrorCode::kInvalidData, "the stream broke off after {} pieces, without an end: \"{}\"",
                completion_.pieces, quote(completion_.text));
  completion_.total_seconds = now_seconds;
  return completion_;
}

Result<RemoteModel> RemoteModel::connect(RemoteOptions options) {
  options.url = api_root(std::move(options.url));
  RemoteModel remote(std::move(options));
  if (!remote.options_.model.empty()) return remote;
  HttpRequest request;
  request.url = remote.options_.url + "/models";
  request.headers = headers_of(remote.options_);
  request.stall_timeout = remote.options_.stall_timeout;
  request.cancel = remote.options_.cancel;
  std::string body;
  PIVOT_TRY(const HttpResponse response, http_exchange(request, [&](std::string_view piece) {
              body += piece;
              return body.size() <= kLongestLine;
            }));
  PIVOT_TRY_VOID(check_status(response.status, request.url, body));
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("data") && json["data"].is_array() && !json["data"].empty() &&
      json["data"][0].is_object() && json["data"][0].contains("id") && json["data"][0]["id"].is_string()) {
    remote.options_.model = json["data"][0]["id"];
    return remote;
  }
  return fail(ErrorCode::kInvalidData, "{} is no list of models (\"{}\"); give --served-model", request.url,
              quote(body));
}

Result<Completion> RemoteModel::complete(const std::string& body) const {
  HttpRequest request;
  request.url = options_.url + "/completions";
  request.headers = headers_of(options_);
  request.body = body;
  request.stall_timeout = options_.stall_timeout;
  request.cancel = options_.cancel;
  const Clock::time_point start = Clock::now();
  CompletionReader reader;
  Result<> read;
  std::string head;  // for a refusal, whose body is no completion
  auto response = http_exchange(request, [&](std::string_view piece) {
    if (head.size() < kLongestText) head += piece;
    if (read) read = reader.feed(piece, since(start));
    return read.has_value() || head.size() < std::size_t{64} * 1024;  // enough to tell what it is
  });
  if (!response) return fail(std::move(response).error());
  PIVOT_TRY_VOID(check_status(response->status, request.url, head));
  if (!read) return fail(std::move(read).error());
  return reader.finish(since(start));
}

Result<CaseResult> RemoteModel::run(const Case& test, const Tokenizer& tokenizer) const {
  Json body = {{"model", options_.model},
               {"max_tokens", test.answer_tokens},
               {"temperature", 0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (options_.form == PromptForm::kIds) {
    Json ids = Json::array();
    for (const TokenId id : test.prompt) ids.push_back(raw(id));
    body["prompt"] = std::move(ids);
  } else {
    body["prompt"] = tokenizer.decode(test.prompt, /*skip_special=*/false);
  }
  CaseResult result;
  result.id = test.spec.id();
  result.spec = test.spec;
  result.prompt_tokens = static_cast<std::int64_t>(test.prompt.size());
  result.facts = test.facts;
  result.question = test.question;
  result.expected = test.expected;
  const auto completion = complete(body.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!completion) {
    const ErrorCode code = completion.error().code;
    if (code == ErrorCode::kCancelled || code == ErrorCode::kPermission ||
        code == ErrorCode::kInvalidArgument)
      return fail(completion.error());
    result.failure = completion.error().message;
    return result;
  }
  result.answer = completion->text;
  result.score = score_answer(test, result.answer);
  result.generated_tokens =
      completion->completion_tokens >= 0 ? completion->completion_tokens : completion->pieces;
  result.prefill_seconds = completion->first_seconds;
  result.decode_seconds = completion->total_seconds - completion->first_seconds;
  result.finish_reason = completion->finish_reason;
  result.remarks = remarks_on(*completion, test, options_.form);
  return result;
}

}  // namespace pivot::recall
