// Measuring a server from outside: the same cases through /v1/completions of any OpenAI-compatible server.
//
// The prompt goes as token ids, so that lengths, residues and places are exact, or as text for servers that
// take none (the server's tokenizer then decides, and may add tokens of its own). Nothing that the server
// says is believed unchecked: an answer that stalls, breaks off or is no completion is a case that was not
// answered, and figures of its usage that cannot be are noted beside the case.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "recall/runner.h"

namespace pivot::recall {

enum class PromptForm : std::uint8_t { kIds, kText };
// kInvalidArgument for another word than ids or text.
Result<PromptForm> parse_prompt_form(std::string_view name);

struct RemoteOptions {
  std::string url;      // "http://127.0.0.1:8000" or ".../v1"
  std::string model;    // the name that the server knows it by; empty: the first of /v1/models
  std::string api_key;  // sent as a bearer token; empty: none
  PromptForm form = PromptForm::kIds;
  std::chrono::milliseconds stall_timeout{120'000};
  const CancelFlag* cancel = nullptr;
};

// What a stream of server-sent events carried.
struct Completion {
  std::string text;
  std::int64_t pieces = 0;  // events with text
  std::string finish_reason;
  std::int64_t prompt_tokens = -1;      // as the server says; -1: it says nothing
  std::int64_t completion_tokens = -1;  // likewise
  double first_seconds = 0;             // to the first text
  double total_seconds = 0;
};

// Reads a body, streamed or whole, piece by piece. Pure but for the clock that the caller passes in.
class CompletionReader {
 public:
  // Errors: kInvalidData for what is no completion, kUnavailable for an error that the server reports
  // mid-stream.
  Result<> feed(std::string_view piece, double now_seconds);
  // After the last piece. Errors: kInvalidData where the stream ended before [DONE] or a finish reason.
  Result<Completion> finish(double now_seconds);
  bool done() const { return done_; }

 private:
  Result<> line(std::string_view line, double now_seconds);
  Result<> event(std::string_view json, double now_seconds);
  std::string pending_;
  bool streamed_ = false, done_ = false;
  Completion completion_;
};

class RemoteModel {
 public:
  // Asks the server for its model's name where none is given. Errors: http_exchange's; kInvalidData for an
  // answer that is no list of models.
  static Result<RemoteModel> connect(RemoteOptions options);

  const std::string& model() const { return options_.model; }
  // One case, greedy. A case that the server does not answer is a result whose `failure` says why.
  // Errors: kCancelled; kPermission and kInvalidArgument for refusals that every case would get (HTTP 401,
  // 403, 404).
  Result<CaseResult> run(const Case& test, const Tokenizer& tokenizer) const;

 private:
  explicit RemoteModel(RemoteOptions options) : options_(std::move(options)) {}
  Result<Completion> complete(const std::string& body) const;
  RemoteOptions options_;
};

}  // namespace pivot::recall
