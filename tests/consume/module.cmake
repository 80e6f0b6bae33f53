# The test consume/module: configures, builds and runs module/ in the folder WORK, with a compiler of its own.
cmake_minimum_required(VERSION 3.28...3.31)

set(WAY module)
include(${CMAKE_CURRENT_LIST_DIR}/step.cmake)

file(REMOVE_RECURSE "${WORK}")
set(arguments -DCMAKE_CXX_FLAGS_RELEASE= -DTUTTI_WITH_CUDA=OFF)
foreach(name IN ITEMS TUTTI_SOURCE Torch_DIR CMAKE_CXX_COMPILER CMAKE_MAKE_PROGRAM TUTTI_hana_INCLUDE TUTTI_range_v3_INCLUDE)
  list(APPEND arguments "-D${name}=${${name}}")
endforeach()
step("${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/module" -B "${WORK}/build" ${arguments})
step("${CMAKE_COMMAND}" --build "${WORK}/build")
step("${WORK}/build/app")
