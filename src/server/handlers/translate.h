// From an API's request to what the engine runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api/answer.h"
#include "server/api/request.h"
#include "server/handlers/context.h"

namespace pivot::server {

// One prompt and how to answer it. Errors are the client's to mend, with the field named.
struct PreparedPrompt {
  std::vector<TokenId> ids;
  std::string echo;  // the prompt's text, where it is to be repeated
};

// The reasoning mode that a chat request ends up with.
ThinkingMode thinking_of(const Context& context, const api::ChatPrompt& prompt);
api::ApiResult<std::vector<PreparedPrompt>> prepare_prompts(Context& context, const std::string& client,
                                                            api::GenerationRequest& request);
api::ApiResult<std::vector<TokenId>> chat_prompt_ids(Context& context, const std::string& client,
                                                     api::ChatPrompt& prompt);
// The server's defaults under the request's fields. A seed that was not given is drawn.
api::ApiResult<SamplingParams> prepare_sampling(const Context& context,
                                                const api::GenerationRequest& request);
std::vector<TokenId> stop_tokens_of(const Context& context, const api::SamplingFields& fields);
// Calls `done` once: with null where nothing constrains the answer. What has to be compiled is compiled
// elsewhere, and `done` is then called there; it must not block.
using ConstraintDone = std::function<void(api::ApiResult<std::unique_ptr<TokenConstraint>>)>;
void prepare_constraint(Context& context, const api::GenerationRequest& request, ConstraintDone done);
// 404 where `model` is not served here; an empty name is the server's model.
api::ApiResult<> check_model(const Context& context, const std::string& model);

}  // namespace pivot::server
