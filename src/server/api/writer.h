// The JSON of answers: one writer per API, for whole bodies and for streams of server-sent events.
//
// A writer is a pure state machine: the same calls give the same bytes. Calls for one answer come in this
// order: begin, then per choice deltas and end_choice, then end; or failure at any time after begin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api/answer.h"
#include "server/api/error.h"
#include "server/api/request.h"

namespace pivot::api {

struct AnswerIdentity {
  std::string id;            // "chatcmpl-...", "msg_...": with the API's prefix
  std::int64_t created = 0;  // Unix time
  std::string model;
  std::string fingerprint;  // system_fingerprint
  std::string request_id;
  std::vector<std::string> echoes;  // /v1/completions with echo: the prompts' texts
  // Of the prompt, by prompt, where they were asked for: the first token has none.
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs;
  double temperature = 1;
  double top_p = 1;
};

// A choice that has ended.
struct ChoiceRecord {
  std::string content;
  std::string reasoning;
  std::vector<ParsedToolCall> tool_calls;
  std::vector<TokenLogprobs> content_logprobs;
  std::vector<TokenLogprobs> reasoning_logprobs;
  ChoiceEnd end;
};

class Writer {
 public:
  virtual ~Writer() = default;

  // Server-sent events. `usage` of begin has the prompt's figures only.
  virtual std::string begin(const Usage& usage) = 0;
  virtual std::string delta(std::int32_t choice, const Delta& delta, const Usage& usage) = 0;
  virtual std::string end_choice(std::int32_t choice, const ChoiceEnd& end, const Usage& usage) = 0;
  virtual std::string end(const Usage& usage) = 0;
  // Instead of what was still to come.
  virtual std::string failure(const ApiError& error) = 0;
  // Keeps a silent connection alive.
  virtual std::string ping() const { return ": ping\n\n"; }

  // The whole answer as one body.
  virtual std::string body(const std::vector<ChoiceRecord>& choices, const Usage& usage) = 0;

  // What may become known after the writer was made, before begin or body.
  AnswerIdentity identity;
};

// "chatcmpl-", "cmpl-", "resp_", "msg_".
std::string_view id_prefix(Api api);
// The request must outlive the writer.
std::unique_ptr<Writer> make_writer(const GenerationRequest& request, AnswerIdentity identity);

}  // namespace pivot::api
