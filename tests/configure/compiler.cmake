# A compiler that is too old is refused in one sentence before anything is installed, and the two scripts take a newer one where
# there is one.
cmake_minimum_required(VERSION 3.23...3.31)
include("${TUTTI_SOURCE}/cmake/Setup.cmake")
file(REMOVE_RECURSE "${WORK}")

# A compiler that is the one of this build but for what it says of itself.
function(make_compiler name maker version)
  file(WRITE "${WORK}/bin/${name}" "#!/bin/sh
case \"$*\" in
  --version) echo '${maker}' ;;
  -dump*) echo '${version}' ;;
  *) exec '${CMAKE_CXX_COMPILER}' \"$@\" ;;
esac
")
  file(CHMOD "${WORK}/bin/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
set(gcc "a compiler, Copyright (C) Free Software Foundation, Inc.")
make_compiler(c++ "${gcc}" 11.4.0)
make_compiler(clang++ "Debian clang version 13.0.1-6" 13.0.1)
make_compiler(new "${gcc}" 12.1.0)
make_compiler(other "another compiler 3.1" 3.1)

function(expect compiler sentence)
  tutti_compiler_too_old("${WORK}/bin/${compiler}" said)
  string(FIND "${said}" "${sentence}" at)
  if(at EQUAL -1 OR (said AND NOT sentence))
    message(FATAL_ERROR "of ${compiler} was said \"${said}\", expected \"${sentence}\"")
  endif()
endfunction()
expect(c++ "c++ is GCC 11.4.0, which is too old; tutti needs GCC 12 or Clang 14, or newer. Install one and give it with")
expect(clang++ "clang++ is Clang 13.0.1, which is too old; tutti needs GCC 12 or Clang 14, or newer.")
expect(new "")
expect(other "")

# CMake's own configure step; the cache folder is where nothing can be made.
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env XDG_CACHE_HOME=/dev/null "${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${TUTTI_SOURCE}"
          -B "${WORK}/build" "-DCMAKE_CXX_COMPILER=${WORK}/bin/c++" -DTUTTI_SETUP=ON -DTUTTI_TORCH_RELEASE=2.11.0
  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
string(REGEX REPLACE "[ \n]+" " " said "${said}")
if(NOT failed OR NOT said MATCHES "GCC 11.4.0, which is too old" OR said MATCHES "XDG_CACHE_HOME|installing")
  message(FATAL_ERROR "configuring with a compiler that is too old says\n${said}")
endif()

# The two scripts.
set(ENV{PATH} "${WORK}/bin:$ENV{PATH}")
set(ENV{CXX} "")
function(expect_choice compiler sentence)
  set(CMAKE_CXX_COMPILER "")
  set(FAILED "")
  setup_find_compiler()
  string(FIND "${FAILED}" "${sentence}" at)
  if(NOT CMAKE_CXX_COMPILER STREQUAL compiler OR at EQUAL -1 OR (FAILED AND NOT sentence))
    message(FATAL_ERROR "\"${CMAKE_CXX_COMPILER}\" is taken, expected \"${compiler}\"; said is \"${FAILED}\"")
  endif()
endfunction()
make_compiler(g++ "${gcc}" 11.4.0)
make_compiler(g++-25 "${gcc}" 25.1.0)
expect_choice("${WORK}/bin/g++-25" "")
make_compiler(g++-25 "${gcc}" 9.0.0) # and all others that the machine may have
foreach(version RANGE 12 24)
  make_compiler(g++-${version} "${gcc}" 9.0.0)
  make_compiler(clang++-${version} "Debian clang version 9.0.0" 9.0.0)
endforeach()
make_compiler(clang++-25 "Debian clang version 9.0.0" 9.0.0)
expect_choice("" "c++ is GCC 11.4.0, which is too old")
make_compiler(c++ "${gcc}" 12.0.0)
expect_choice("" "")
