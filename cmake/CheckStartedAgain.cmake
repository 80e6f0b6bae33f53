# A program that never evaluates during training, and one that finds its run complete, end well and print their accuracy all
# the same. What it prints has no control characters, and the command that it names at its end goes on. Run by CTest, with
#   -DPROGRAM=<a program that takes --max-duration, --eval-interval, --save-folder and --autoresume>  -DFOLDER=<where it may write>
cmake_minimum_required(VERSION 3.23...3.31)

file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
set(nevers 0 0ep)
set(completes OFF ON)
string(ASCII 27 escape)
foreach(never complete IN ZIP_LISTS nevers completes)
  execute_process(
    COMMAND "${PROGRAM}" --max-duration 1 --eval-interval ${never} --save-interval 1 --save-folder "${FOLDER}/run" --autoresume
    WORKING_DIRECTORY "${FOLDER}" OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${PROGRAM} ended with ${failed}:\n${said}")
  elseif(NOT said MATCHES "test accuracy: [0-9.]+ %")
    message(FATAL_ERROR "${PROGRAM} did not print its accuracy:\n${said}")
  elseif(complete AND NOT said MATCHES "the run that was resumed is complete")
    message(FATAL_ERROR "${PROGRAM} did not say that its run is complete:\n${said}")
  elseif(said MATCHES "\r|${escape}")
    message(FATAL_ERROR "${PROGRAM} wrote control characters into a pipe:\n${said}")
  elseif(NOT complete AND NOT said MATCHES "\ntrain on +([^\n]+)\n")
    message(FATAL_ERROR "${PROGRAM} did not name the command that goes on:\n${said}")
  elseif(NOT complete)
    set(command "${CMAKE_MATCH_1}")
  endif()
endforeach()

execute_process(COMMAND sh -c "${command}"
  WORKING_DIRECTORY "${FOLDER}" OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
if(failed OR NOT said MATCHES "run  +[^\n]+, 2ep [^\n]*, goes on after batch [0-9]+ from ")
  message(FATAL_ERROR "${command}\ndid not go on, but ended with ${failed}:\n${said}")
endif()
