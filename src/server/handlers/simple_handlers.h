// Paths that answer at once, from figures or small computations. Private to the service.
#pragma once

#include <string>
#include <string_view>

#include "server/api/error.h"
#include "server/handlers/context.h"
#include "server/http/message.h"

namespace pivot::server {

http::Response json_response(std::string body);
http::Response get_models(const Context& context);
// `id` as in the path, percent-encoded.
api::ApiResult<http::Response> get_model(const Context& context, std::string_view id);
api::ApiResult<http::Response> post_tokenize(Context& context, const http::Request& request);
api::ApiResult<http::Response> post_detokenize(Context& context, const http::Request& request);
api::ApiResult<http::Response> post_count_tokens(Context& context, const http::Request& request);
// 503 where the engine's loop has not moved for as long as no step takes.
http::Response get_health(Context& context);
http::Response get_loads(const Context& context);
http::Response get_model_info(const Context& context);
http::Response post_flush_cache(Context& context);

}  // namespace pivot::server
