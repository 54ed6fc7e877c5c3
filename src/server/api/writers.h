// The four writers behind make_writer. Private to them.
#pragma once

#include "server/api/writer.h"

namespace pivot::api {

std::unique_ptr<Writer> make_chat_writer(const GenerationRequest& request);
std::unique_ptr<Writer> make_completions_writer(const GenerationRequest& request);
std::unique_ptr<Writer> make_responses_writer(const GenerationRequest& request);
std::unique_ptr<Writer> make_messages_writer(const GenerationRequest& request);

}  // namespace pivot::api
