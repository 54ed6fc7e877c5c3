# Compiler settings shared by every target, and the helpers that declare a library, a test and a fuzz target.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(pivot_compile INTERFACE)
target_include_directories(pivot_compile INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -ffp-contract=off: a fused multiply-add changes the rounding points that the specification fixes;
# code that wants FMA (src/ops/cpu/simd) asks for it with intrinsics.
target_compile_options(pivot_compile INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wno-unknown-pragmas -ffp-contract=off -fno-math-errno>)

if(PIVOT_SANITIZE)
  target_compile_options(pivot_compile INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PIVOT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(pivot_compile INTERFACE -fsanitize=${PIVOT_SANITIZE})
  if(NOT PIVOT_FUZZ)
    target_link_libraries(pivot_compile INTERFACE $<TARGET_OBJECTS:pivot_sanitizer_options>)
  endif()
endif()
# A test's time-out is there to end what hangs; instrumented, everything takes several times as long.
set(PIVOT_TIMEOUT_FACTOR 1)
if(PIVOT_SANITIZE MATCHES thread)
  set(PIVOT_TIMEOUT_FACTOR 15)
elseif(PIVOT_SANITIZE)
  set(PIVOT_TIMEOUT_FACTOR 6)
endif()

if(PIVOT_FUZZ)
  # The libraries under test must report their coverage, or the fuzzer would search blindly.
  target_compile_options(pivot_compile INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# pivot_library(NAME SOURCES... [DEPS ...]) declares the static library pivot_NAME of one source folder.
function(pivot_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(pivot_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(pivot_${name} PUBLIC pivot_compile ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# pivot_unity(TARGET) compiles a target's sources several at a time: for folders whose compile time goes into large headers. Names in their anonymous namespaces must then differ within
# the folder. What needs one compiler call per source (clang-tidy) configures with PIVOT_UNITY=OFF.
function(pivot_unity target)
  if(PIVOT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# pivot_test(NAME SOURCES ... DEPS ... [LABELS ...] [TIMEOUT s]) declares one GoogleTest binary as one ctest.
# Labels: cpu (default), slow, data (needs PIVOT_TEST_DATA; skips loudly without), gpu.
function(pivot_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE pivot_test_support ${ARG_DEPS})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  pivot_timeout(${ARG_TIMEOUT} ${name})
endfunction()

# pivot_timeout(SECONDS TEST...) ends tests that take longer, in a build with sanitizers several times as long.
function(pivot_timeout seconds)
  math(EXPR limit "${seconds} * ${PIVOT_TIMEOUT_FACTOR}")
  set_tests_properties(${ARGN} PROPERTIES TIMEOUT ${limit})
endfunction()

# pivot_fuzz(NAME SOURCES ... DEPS ...) declares one libFuzzer binary; its corpus is tests/fuzz/corpus/NAME.
function(pivot_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(fuzz_${name} ${ARG_SOURCES})
  if(NOT TARGET fuzz_targets)
    add_custom_target(fuzz_targets)
  endif()
  add_dependencies(fuzz_targets fuzz_${name})
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_${name} PRIVATE pivot_compile ${ARG_DEPS})
endfunction()
