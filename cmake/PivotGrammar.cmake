# XGrammar's C++ core, for structured output. Its source distribution is put in place by tools/fetch_xgrammar.sh
# (which ./dev calls); without it everything builds, and structured output is refused when asked for.
set(PIVOT_XGRAMMAR_VERSION 0.2.9)
set(PIVOT_XGRAMMAR_DIR ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar-${PIVOT_XGRAMMAR_VERSION} CACHE PATH
  "Unpacked source distribution of xgrammar ${PIVOT_XGRAMMAR_VERSION}")
if(EXISTS ${PIVOT_XGRAMMAR_DIR}/include/xgrammar/xgrammar.h)
  set(PIVOT_GRAMMAR ON)
else()
  set(PIVOT_GRAMMAR OFF)
  message(WARNING "There is no xgrammar ${PIVOT_XGRAMMAR_VERSION} in ${PIVOT_XGRAMMAR_DIR}: this build refuses structured "
                  "output. Run tools/fetch_xgrammar.sh and configure again.")
  return()
endif()

# Every source but the bindings to Python.
file(GLOB_RECURSE xgrammar_sources ${PIVOT_XGRAMMAR_DIR}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM PUBLIC
  ${PIVOT_XGRAMMAR_DIR}/include ${PIVOT_XGRAMMAR_DIR}/3rdparty/dlpack/include
  PRIVATE ${PIVOT_XGRAMMAR_DIR}/3rdparty/picojson)
target_compile_definitions(xgrammar PUBLIC
  XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
  # Its log and its fatal errors come to src/text/grammar/library_log.cpp.
  PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1)
# Optimised in every build type (masks are on the path of each token), and neither warnings nor debug information of code that is not ours.
target_compile_options(xgrammar PRIVATE -O2 -g0 -w)
pivot_unity(xgrammar)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "")
if(PIVOT_SANITIZE)
  target_compile_options(xgrammar PRIVATE -fsanitize=${PIVOT_SANITIZE} -fno-omit-frame-pointer)
endif()
if(PIVOT_FUZZ)
  target_compile_options(xgrammar PRIVATE -fsanitize=fuzzer-no-link)
endif()
