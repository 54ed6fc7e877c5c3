#include "base/error.h"

#include <sysexits.h>

#include <array>

namespace pivot {

const ErrorMapping& mapping(ErrorCode code) {
  static const std::array<ErrorMapping, 12> kTable = {{
      {"invalid_argument", EX_USAGE, 400, "invalid_request_error", ""},
      {"invalid_data", EX_DATAERR, 400, "invalid_request_error", ""},
      {"not_found", EX_NOINPUT, 404, "not_found_error", "model_not_found"},
      {"unsupported", EX_DATAERR, 400, "invalid_request_error", "unsupported"},
      {"context_overflow", EX_DATAERR, 400, "invalid_request_error", "context_length_exceeded"},
      {"out_of_memory", EX_OSERR, 503, "service_unavailable", "insufficient_capacity"},
      {"cannot_create", EX_CANTCREAT, 500, "server_error", ""},
      {"permission", EX_NOPERM, 403, "permission_error", ""},
      {"io", EX_IOERR, 500, "server_error", ""},
      {"unavailable", EX_TEMPFAIL, 503, "service_unavailable", "unavailable"},
      {"cancelled", EX_TEMPFAIL, 499, "server_error", "cancelled"},
      {"internal", EX_SOFTWARE, 500, "server_error", "internal"},
  }};
  return kTable[static_cast<std::size_t>(code)];
}

std::string Error::to_string() const {
  std::string text;
  for (auto it = context.rbegin(); it != context.rend(); ++it) text += *it + ": ";
  return text + message;
}

}  // namespace pivot
