# Which compilers are new enough, which the tests try, and where numbers and words of one compiler are held.
include_guard(GLOBAL)

set(TUTTI_GCC_MINIMUM 12) # as in include/tutti/config.hpp
set(TUTTI_CLANG_MINIMUM 14)

# GCC does not collect its garbage before it has 2 GB: a tenth of a test's time, for a tenth more memory, 2.8 GB. The whole
# library in one source is 5 GB with GCC's own choice and 6 with this, so it has half of it.
set(TUTTI_GCC_COLLECTS_LATE --param=ggc-min-heapsize=2000000)
set(TUTTI_GCC_COLLECTS_SOONER --param=ggc-min-heapsize=1000000)

# One sentence when `compiler` is a GCC or Clang that is too old, else nothing. Needs no project.
function(tutti_compiler_too_old compiler out)
  set(${out} "" PARENT_SCOPE)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env LC_ALL=C "${compiler}" --version OUTPUT_VARIABLE said ERROR_QUIET)
  execute_process(COMMAND "${compiler}" -dumpfullversion -dumpversion OUTPUT_VARIABLE version ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(said MATCHES "Free Software Foundation")
    set(name GCC)
  elseif(NOT said MATCHES "Apple" AND said MATCHES "clang version ([0-9.]+)")
    set(name Clang)
    set(version "${CMAKE_MATCH_1}")
  else()
    return() # it has its own numbers
  endif()
  string(TOUPPER "${name}" upper)
  if(version AND version VERSION_LESS TUTTI_${upper}_MINIMUM)
    set(${out} "The C++ compiler ${compiler} is ${name} ${version}, which is too old; tutti needs GCC ${TUTTI_GCC_MINIMUM} \
or Clang ${TUTTI_CLANG_MINIMUM}, or newer. Install one and give it with -DCMAKE_CXX_COMPILER=<compiler>, in a new build folder."
      PARENT_SCOPE)
  endif()
endfunction()

# Sets `out` where `compiler`, a GCC or Clang, is one that developers build with: GCC 12 or Clang 14, Debian 12's. Warnings are
# errors for these alone (TUTTI_WERROR), and the lines that they print for one mistake are counted. Needs no project.
function(tutti_pinned_compiler compiler out)
  execute_process(COMMAND "${compiler}" -dumpversion OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "^[0-9]+" major "${version}")
  set(pinned 12)
  if(compiler MATCHES "clang[^/]*$")
    set(pinned 14)
  endif()
  string(COMPARE EQUAL "${major}" "${pinned}" same)
  set(${out} ${same} PARENT_SCOPE)
endfunction()

# TUTTI_TEST_COMPILERS: the compiler of this build, and the other of g++ and clang++ when it is new enough.
macro(tutti_test_compilers)
  set(TUTTI_TEST_COMPILERS ${CMAKE_CXX_COMPILER})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    find_program(TUTTI_OTHER_CXX NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
  else()
    find_program(TUTTI_OTHER_CXX NAMES g++ g++-14 g++-13 g++-12)
  endif()
  mark_as_advanced(TUTTI_OTHER_CXX)
  if(TUTTI_OTHER_CXX)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/probe.cpp "#include <concepts>\n#include <tutti/config.hpp>\n")
    execute_process(
      COMMAND ${TUTTI_OTHER_CXX} -std=c++20 -fsyntax-only -I${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_BINARY_DIR}/probe.cpp
      RESULT_VARIABLE unfit OUTPUT_QUIET ERROR_QUIET)
    if(NOT unfit)
      list(APPEND TUTTI_TEST_COMPILERS ${TUTTI_OTHER_CXX})
    endif()
  endif()
endmacro()

# A test that cannot be run here: CTest counts it as skipped, and cmake/test.cmake lists it with the reason.
function(tutti_skipped_test name reason)
  message(STATUS "tutti: ${name} is skipped: ${reason}")
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
  set_tests_properties(${name} PROPERTIES LABELS check SKIP_REGULAR_EXPRESSION "^skipped: ")
endfunction()
