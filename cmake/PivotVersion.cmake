# Writes pivot_version.h in the build tree: the commit, the build type and the compiled back-ends.
find_package(Git QUIET)
set(PIVOT_COMMIT "unknown")
if(GIT_FOUND AND EXISTS ${CMAKE_SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty --abbrev=12
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE PIVOT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(PIVOT_COMMIT STREQUAL "")
  set(PIVOT_COMMIT "unknown")
endif()
configure_file(${CMAKE_SOURCE_DIR}/cmake/pivot_version.h.in ${CMAKE_BINARY_DIR}/generated/pivot_version.h @ONLY)
