#include "text/grammar/library_log.h"

#include <stdexcept>

#include "base/log.h"

namespace pivot {
namespace {
thread_local LibraryLog* current_log = nullptr;
}

LibraryLog::LibraryLog() : outer_(current_log) { current_log = this; }
LibraryLog::~LibraryLog() { current_log = outer_; }

}  // namespace pivot

// The hooks that the library declares when it is built with XGRAMMAR_LOG_CUSTOMIZE
// (cmake/PivotGrammar.cmake).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && pivot::current_log != nullptr) pivot::current_log->add(message);
}

}  // namespace xgrammar
