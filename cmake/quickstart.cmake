# From a fresh machine to a trained network: finds or installs what is missing, builds examples/digits and runs it.
#   cmake -P cmake/quickstart.cmake
# Run again it does only what is left to do. Options (before -P) are listed in Setup.cmake.
cmake_minimum_required(VERSION 3.23...3.31)
include(${CMAKE_CURRENT_LIST_DIR}/Setup.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TuttiTorch.cmake)

# The program needs CUDA for a GPU alone: where there is a toolkit and no driver, 2 GB would be downloaded for nothing.
if(NOT DEFINED TUTTI_WITH_CUDA)
  tutti_has_nvidia_driver(has_driver)
  set(TUTTI_WITH_CUDA OFF)
  if(has_driver) # since an earlier run, perhaps
    set(TUTTI_WITH_CUDA AUTO)
  endif()
endif()

# One program is built once: what programs can share would take longer than it saves. With -O1 it runs as fast as with -O3,
# since LibTorch does the arithmetic, and the compiler, of which all wait for one process, takes two thirds of the time.
setup_configure(build/quickstart 300 3072 Release -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=ON -DTUTTI_SHARE_COMPILATION=OFF
  "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")
setup_build("examples/digits" digits)
setup_run("examples/digits stopped with an error, given above." "${BUILD_DIR}/examples/digits")

if(FAILED)
  message(FATAL_ERROR "${FAILED}")
endif()
message("Done: run it again with ${BUILD_DIR}/examples/digits; the tests are run by cmake -P cmake/test.cmake.")
