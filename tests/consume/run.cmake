# One test of tests/consume: configures, builds and runs <WAY>/ in the folder WORK.
cmake_minimum_required(VERSION 3.23...3.31)

include(${CMAKE_CURRENT_LIST_DIR}/step.cmake)

file(REMOVE_RECURSE "${WORK}")
set(arguments -DCMAKE_CXX_FLAGS_RELEASE=) # quick to compile; that it is a Release is seen below
foreach(name IN ITEMS Torch_DIR TUTTI_WITH_CUDA CMAKE_CXX_COMPILER TUTTI_hana_INCLUDE TUTTI_range_v3_INCLUDE)
  list(APPEND arguments "-D${name}=${${name}}")
endforeach()
set(headers 0)
if(WAY STREQUAL "find_package")
  set(headers 2) # one of another option
  step("${CMAKE_COMMAND}" --install "${TUTTI_BUILD}" --prefix "${WORK}/prefix")
  list(APPEND arguments "-DCMAKE_PREFIX_PATH=${WORK}/prefix")
  set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER};${WORK}/prefix/include")
elseif(WAY STREQUAL "fetch_content")
  list(APPEND arguments "-DFETCHCONTENT_SOURCE_DIR_TUTTI=${TUTTI_SOURCE}")
else()
  list(APPEND arguments "-DTUTTI_SOURCE=${TUTTI_SOURCE}")
endif()
if(NOT WAY STREQUAL "find_package") # what is compiled once for many programs is seen with find_package
  list(APPEND arguments -DTUTTI_SHARE_COMPILATION=OFF)
endif()
step("${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${CMAKE_CURRENT_LIST_DIR}/${WAY}" -B "${WORK}/build" ${arguments})
step("${CMAKE_COMMAND}" --build "${WORK}/build")
step("${WORK}/build/app")
foreach(program IN ITEMS second light other/other)
  if(EXISTS "${WORK}/build/${program}")
    step("${WORK}/build/${program}")
  endif()
endforeach()

# What tutti_add_program says of itself.
file(STRINGS "${WORK}/build/CMakeCache.txt" type REGEX "^CMAKE_BUILD_TYPE:[A-Z]*=Release$")
if(NOT type AND NOT GENERATOR MATCHES "Multi-Config")
  message(FATAL_ERROR "consume/${WAY}: the build type is not Release")
endif()
file(READ "${WORK}/build/compile_commands.json" commands)
if(NOT commands MATCHES "consume/train.cpp" OR NOT commands MATCHES "consume/product.cpp")
  message(FATAL_ERROR "consume/${WAY}: compile_commands.json lacks the program's files:\n${commands}")
endif()
file(GLOB_RECURSE found "${WORK}/build/*.gch" "${WORK}/build/*.pch")
list(LENGTH found count)
if(NOT count EQUAL headers)
  message(FATAL_ERROR "consume/${WAY}: there are ${count} precompiled headers, expected ${headers}: ${found}")
endif()
file(REMOVE_RECURSE "${WORK}") # more than a gigabyte
