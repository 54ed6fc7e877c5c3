#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace pivot::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "pivot: internal check failed at %s:%d: %s%s%s\n", file, line, condition,
               values.empty() ? "" : ": ", values.c_str());
  std::abort();
}

}  // namespace pivot::detail
