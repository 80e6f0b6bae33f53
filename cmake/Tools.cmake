# Targets docs, the site; format (rewrites), format-check and tidy, where the pinned version of the tool is installed.
set(TUTTI_CLANG_FORMAT 19.1.7) # of PyPI, for every machine; with CMake's set-up scripts it is installed where it is missing

function(tutti_find_tool name version)
  string(REGEX MATCH "^[0-9]+" major "${version}")
  string(MAKE_C_IDENTIFIER "TUTTI_${name}" variable)
  find_program(${variable} NAMES ${name}-${major} ${name} ${ARGN})
  mark_as_advanced(${variable})
  if(${variable})
    execute_process(COMMAND "${${variable}}" --version OUTPUT_VARIABLE said)
    string(REPLACE "." "\\." pattern "${version}")
    if(NOT said MATCHES "version ${pattern}[^0-9]")
      set(${variable} "" PARENT_SCOPE)
    endif()
  endif()
endfunction()
tutti_find_tool(clang-format ${TUTTI_CLANG_FORMAT})
tutti_find_tool(clang-tidy 14)
if(NOT TUTTI_clang_format AND TUTTI_SETUP AND TUTTI_BUILD_TESTS)
  include(${PROJECT_SOURCE_DIR}/cmake/Provision.cmake)
  set(python)
  tutti_provision_python(python format clang-format==${TUTTI_CLANG_FORMAT})
  if(python)
    get_filename_component(bin "${python}" DIRECTORY) # of a system's Python, it may be of another release
    unset(TUTTI_clang_format)
    unset(TUTTI_clang_format CACHE)
    tutti_find_tool(clang-format ${TUTTI_CLANG_FORMAT} HINTS "${bin}")
  endif()
endif()

file(GLOB_RECURSE sources CONFIGURE_DEPENDS
  include/*.hpp include/*.h cmake/*.cpp tests/*.cpp tests/*.hpp examples/*.cpp examples/*.hpp benchmarks/*.cpp benchmarks/*.hpp)
if(TUTTI_clang_format)
  add_custom_target(format COMMAND "${TUTTI_clang_format}" -i ${sources} VERBATIM)
  add_custom_target(format-check COMMAND "${TUTTI_clang_format}" --dry-run --Werror ${sources} VERBATIM)
endif()
if(TUTTI_clang_tidy)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(units ${sources})
  list(FILTER units INCLUDE REGEX "/(tests/core|examples)/[^/]*\\.cpp$")
  add_custom_target(tidy COMMAND "${TUTTI_clang_tidy}" -p ${PROJECT_BINARY_DIR} --quiet ${units} VERBATIM)
endif()

# cmake --build build --target docs: the documentation as a site, in build/site.
set(TUTTI_SITE_PYTHON "" CACHE FILEPATH "A Python with mkdocs-material, for the site")
add_custom_target(docs
  COMMAND ${CMAKE_COMMAND} -DPYTHON=${TUTTI_SITE_PYTHON} -DINSTALL=ON -DOUT=${PROJECT_BINARY_DIR}/site
          -P ${PROJECT_SOURCE_DIR}/cmake/site/build.cmake
  VERBATIM)
