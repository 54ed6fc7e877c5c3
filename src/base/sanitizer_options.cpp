// What the sanitizers' run-times read at the start of every program of a build with PIVOT_SANITIZE; the
// environment (ASAN_OPTIONS, TSAN_OPTIONS, UBSAN_OPTIONS) comes later and wins. Compiled without
// instrumentation: a run-time calls these before it is ready.

extern "C" {

// An allocation that is refused is a case that tests provoke.
const char* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
const char* __asan_default_options() { return "allocator_may_return_null=1"; }

const char* __tsan_default_options();  // NOLINT(bugprone-reserved-identifier)
const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

const char* __ubsan_default_options();  // NOLINT(bugprone-reserved-identifier)
const char* __ubsan_default_options() { return "print_stacktrace=1"; }

}  // extern "C"
