// The one way an expected failure travels: Result<T> with a code, a sentence and a chain of contexts.
//
// An expected failure is anything the outside world can cause: I/O, a malformed file, a bad request, an
// unsupported shape, too little memory at plan time. A programmer error is a PIVOT_CHECK (base/check.h)
// instead. Every message says what was wanted, what was found, where, and what to do next.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace pivot {

enum class ErrorCode {
  kInvalidArgument,  // the caller's input is malformed or out of range
  kInvalidData,      // a file's contents contradict its format
  kNotFound,         // a file, tensor or name that was asked for does not exist
  kUnsupported,      // well formed, but not something this program handles
  kContextOverflow,  // more tokens than the model or the configured limit holds
  kOutOfMemory,      // would not fit; nothing was allocated
  kCannotCreate,     // an output could not be created or written
  kPermission,       // the system refused access
  kIo,               // the system reported an I/O error
  kUnavailable,      // a resource is busy or gone for now; retrying may work
  kCancelled,        // the user or the client stopped the work
  kInternal,         // a bug: reported as such
};

// What a code means to the three audiences: the shell (sysexits), an HTTP client, an OpenAI SDK.
struct ErrorMapping {
  std::string_view name;  // "invalid_argument"
  int exit_code;          // sysexits.h value
  int http_status;
  std::string_view openai_type;  // "invalid_request_error", "server_error", ...
  std::string_view openai_code;  // "context_length_exceeded", ... ; empty means null
};
const ErrorMapping& mapping(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;               // one sentence
  std::vector<std::string> context;  // innermost first: "reading model-00001.safetensors", ...

  Error&& with(std::string where) && {
    context.push_back(std::move(where));
    return std::move(*this);
  }
  // "context: context: message", outermost context first.
  std::string to_string() const;
};

template <class T = void>
using Result = tl::expected<T, Error>;

template <class... Args>
tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...), {}});
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace pivot

// PIVOT_TRY(lhs, expr): evaluates expr (a Result<T>), returns its Error from the enclosing function on
// failure, otherwise moves the value into lhs. PIVOT_TRY_VOID(expr) is the form for Result<void>.
#define PIVOT_CONCAT_INNER(a, b) a##b
#define PIVOT_CONCAT(a, b) PIVOT_CONCAT_INNER(a, b)
#define PIVOT_TRY(lhs, expr)                                                           \
  auto PIVOT_CONCAT(pivot_result_, __LINE__) = (expr);                                 \
  if (!PIVOT_CONCAT(pivot_result_, __LINE__))                                          \
    return ::tl::unexpected(std::move(PIVOT_CONCAT(pivot_result_, __LINE__)).error()); \
  lhs = std::move(*PIVOT_CONCAT(pivot_result_, __LINE__))
#define PIVOT_TRY_VOID(expr)                                                               \
  do {                                                                                     \
    auto pivot_result_void = (expr);                                                       \
    if (!pivot_result_void) return ::tl::unexpected(std::move(pivot_result_void).error()); \
  } while (false)
