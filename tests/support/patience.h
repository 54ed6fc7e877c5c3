// How long a test waits for what must come.
#pragma once

#include <chrono>

namespace pivot::test {

// Only what hangs runs into it: instrumented code on a machine with other work may be a hundred times slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::minutes kPatience{30};
#else
inline constexpr std::chrono::minutes kPatience{2};
#endif

}  // namespace pivot::test
