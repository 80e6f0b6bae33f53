# The test of this folder. WORK is where it may write; the other variables are those of the build that has the test.
cmake_minimum_required(VERSION 3.23...3.31)
include("${TUTTI_SOURCE}/cmake/Compilers.cmake")
file(REMOVE_RECURSE "${WORK}")
list(GET TESTED -1 newest)

# A folder that looks like LibTorch of that version.
function(make_torch version)
  set(root "${WORK}/torch-${version}")
  file(REMOVE_RECURSE "${root}")
  string(REPLACE "." ";" numbers "${version}")
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    list(POP_FRONT numbers number)
    file(APPEND "${root}/include/torch/headeronly/version.h" "#define TORCH_VERSION_${part} ${number}\n")
  endforeach()
  file(WRITE "${root}/include/torch/csrc/api/include/torch/torch.h" "")
  file(WRITE "${root}/lib/libc10.so" "__cxx11")
  file(WRITE "${root}/lib/libtorch_cpu.so" "")
endfunction()

# Configures `source` with such a LibTorch in WORK/<name>; `said` becomes what CMake says.
function(configure name source version)
  make_torch(${version})
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${source}" -B "${WORK}/${name}" "-DTorch_DIR=${WORK}/torch-${version}"
            -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
            -DTUTTI_WITH_CUDA=OFF -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=OFF -DTUTTI_SOURCE=${TUTTI_SOURCE}
            -DTUTTI_hana_INCLUDE=${TUTTI_hana_INCLUDE} -DTUTTI_range_v3_INCLUDE=${TUTTI_range_v3_INCLUDE} ${ARGN}
    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(FATAL_ERROR "${name}: ${version} cannot be configured with ${ARGN}:\n${said}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  set(said "${said}" PARENT_SCOPE)
endfunction()

# `text` stands in `said` so many times.
function(expect count text)
  string(REGEX MATCHALL "${text}" found "${said}")
  list(LENGTH found times)
  if(NOT times EQUAL count)
    message(FATAL_ERROR "\"${text}\" was said ${times} times, expected ${count}:\n${said}")
  endif()
endfunction()

set(too_new "newer than ${newest}, the newest that tutti was tested with")
set(no_type "no build type was given")

# A LibTorch newer than any that was tested is warned of once; another patch of the newest is not.
configure(top "${TUTTI_SOURCE}" ${newest} -DCMAKE_BUILD_TYPE=Release)
expect(0 "${too_new}")
expect(0 "${no_type}")
string(REGEX REPLACE "[0-9]+$" "99" patch ${newest})
configure(top "${TUTTI_SOURCE}" ${patch})
expect(0 "${too_new}")
configure(top "${TUTTI_SOURCE}" 99.0.0)
expect(1 "LibTorch 99.0.0 is ${too_new}")

# Warnings are errors where they were asked for, with the compilers that developers use.
tutti_pinned_compiler("${CMAKE_CXX_COMPILER}" pinned)
foreach(asked IN ITEMS "" ON OFF)
  set(argument)
  if(asked)
    set(argument -DTUTTI_WERROR=${asked})
  elseif(asked STREQUAL "OFF")
    set(argument -DTUTTI_WERROR=OFF)
  endif()
  configure(top "${TUTTI_SOURCE}" ${newest} ${argument})
  file(READ "${WORK}/top/compile_commands.json" commands)
  if(NOT commands MATCHES "-Wconversion")
    message(FATAL_ERROR "tutti's own sources are compiled without warnings:\n${commands}")
  endif()
  string(FIND "${commands}" "-Werror" at)
  if(asked STREQUAL "ON" AND pinned)
    if(at EQUAL -1)
      message(FATAL_ERROR "With TUTTI_WERROR warnings are no errors:\n${commands}")
    endif()
  elseif(NOT at EQUAL -1)
    message(FATAL_ERROR "Warnings are errors with TUTTI_WERROR=\"${asked}\":\n${commands}")
  endif()
endforeach()

# Without a build type tutti's own build is a Release, and says so; the build of a user is the user's.
if(NOT GENERATOR MATCHES "Multi-Config")
  configure(untyped "${TUTTI_SOURCE}" ${newest})
  expect(1 "${no_type}")
  configure(untyped "${TUTTI_SOURCE}" ${newest} -DCMAKE_BUILD_TYPE=None)
  expect(0 "${no_type}")
  file(WRITE "${WORK}/user/CMakeLists.txt"
    "cmake_minimum_required(VERSION 3.23...3.31)\nproject(user CXX)\nadd_subdirectory(\"\${TUTTI_SOURCE}\" tutti)\n")
  configure(used "${WORK}/user" ${newest})
  expect(0 "${no_type}")
endif()

# The launcher and tutti-sweep are installed, whatever was built before.
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${WORK}/top" --prefix "${WORK}/prefix" OUTPUT_QUIET
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/prefix/bin/tutti-run" -n 2 "${CMAKE_COMMAND}" -E echo "rank $RANK" OUTPUT_VARIABLE said
  COMMAND_ERROR_IS_FATAL ANY)
expect(1 "rank 0")
execute_process(COMMAND "${WORK}/prefix/bin/tutti-sweep" --version OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
expect(1 "tutti [0-9.]+")
# So are the licence and the notice, which whoever passes the package on must pass on with it.
foreach(file IN ITEMS LICENSE NOTICE)
  file(GLOB installed "${WORK}/prefix/share/doc/tutti/${file}")
  if(NOT installed)
    message(FATAL_ERROR "The installed package has no ${file}.")
  endif()
endforeach()
