# Trains twice with one seed and compares the weights byte for byte; a third run with another seed has to differ, or the
# comparison would say nothing. Run by CTest, with
#   -DPROGRAM=<a program that takes --max-duration, --save-folder and --seed>  -DFOLDER=<where it may write>
cmake_minimum_required(VERSION 3.23...3.31)

file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
foreach(run IN ITEMS first:17 second:17 other:18)
  string(REPLACE ":" ";" run "${run}")
  list(GET run 0 name)
  list(GET run 1 seed)
  execute_process(
    COMMAND "${PROGRAM}" --max-duration 2ep --save-folder "${FOLDER}/${name}" --seed ${seed}
    WORKING_DIRECTORY "${FOLDER}" OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${PROGRAM} with the seed ${seed} ended with ${failed}:\n${said}")
  endif()
  file(SHA256 "${FOLDER}/${name}/latest/model.safetensors" ${name})
endforeach()
if(NOT first STREQUAL second)
  message(FATAL_ERROR "two runs with the seed 17 have different weights: compare ${FOLDER}/first and ${FOLDER}/second")
elseif(first STREQUAL other)
  message(FATAL_ERROR "the seeds 17 and 18 give the same weights, so the seed is not used")
endif()
message("both runs with the seed 17 have the weights ${first}")
