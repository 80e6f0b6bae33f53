# Builds the project beside this file for aarch64, runs its programs with qemu, and compares the digits' losses with those of
# NATIVE, the same program for this machine.
function(run)
  list(JOIN ARGN " " command)
  message(STATUS "${command}")
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed)
  if(failed AND NOT failed EQUAL 77) # a test program that has skipped a case, and said why
    message(FATAL_ERROR "failed (${failed}): ${command}")
  endif()
endfunction()

set(build ${WORK}/build)
run(${CMAKE_COMMAND} -S ${TUTTI_SOURCE}/tests/aarch64/project -B ${build} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
  --toolchain ${TUTTI_SOURCE}/cmake/toolchains/aarch64.cmake -DTorch_DIR=${TORCH} -DTUTTI_SOURCE=${TUTTI_SOURCE}
  -DTUTTI_WITH_CUDA=OFF)
run(${CMAKE_COMMAND} --build ${build})
file(STRINGS ${build}/run-with emulator)

# [native]: what qemu plays otherwise: limits of memory, hints for pages, programs that cannot be started, time.
foreach(program IN ITEMS core_tests library_tests)
  run(${CMAKE_COMMAND} -E env OMP_NUM_THREADS=1 ${emulator} ${build}/${program} --rng-seed 0 "~[native]~[.]")
endforeach()
foreach(machine IN ITEMS native aarch64)
  set(digits ${NATIVE})
  if(machine STREQUAL "aarch64")
    set(digits ${emulator} ${build}/digits)
  endif()
  file(REMOVE_RECURSE ${WORK}/${machine})
  run(${CMAKE_COMMAND} -E env OMP_NUM_THREADS=1 ${digits} --max-duration 1ep --run-folder ${WORK}/${machine})
endforeach()
run(${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/compare.py ${WORK}/native/metrics.jsonl ${WORK}/aarch64/metrics.jsonl)
