# Finds or installs what is missing, builds every test and runs them all.
#   cmake -P cmake/test.cmake
# Run again it does only what is left to do. Options (before -P) are listed in Setup.cmake; -DTESTS=<regex> runs only
# the tests whose names match. Those of the label newest, hours each, run when they are named. -DTUTTI_ROUND_TRIP=ON
# installs torch for the tests that go to Python's libraries and back, where no Python has it; OFF installs nothing for them.
cmake_minimum_required(VERSION 3.23...3.31)
include(${CMAKE_CURRENT_LIST_DIR}/Setup.cmake)

# No optimisation and no debug information: the tests' time is the compiler's, and half of it goes away.
setup_configure(build/test 9000 4608 None -DTUTTI_BUILD_TESTS=ON -DTUTTI_BUILD_EXAMPLES=ON)
setup_build("the tests" all)
set(only -LE "^newest$")
if(TESTS)
  set(only -R "${TESTS}")
  if(NOT TESTS MATCHES "newest")
    list(APPEND only -LE "^newest$")
  endif()
endif()
file(REMOVE "${BUILD_DIR}/Testing/Temporary/LastTest.log") # of which setup_list_skipped() reads
if(NOT DEFINED ENV{OMP_WAIT_POLICY})
  set(ENV{OMP_WAIT_POLICY} PASSIVE) # several tests at once: a thread that spins while it waits takes a processor from another
endif()
setup_run("Some tests failed; their output is above." "${CMAKE_CTEST_COMMAND}" --output-on-failure --parallel ${JOBS} ${only})
setup_list_skipped()

if(FAILED)
  message(FATAL_ERROR "${FAILED}")
endif()
message("Done: all tests passed${SKIPPED}. The build is in ${BUILD_DIR}.")
