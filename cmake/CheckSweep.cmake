# tutti-sweep with a program of tutti: trials are run, halved and ranked, and a second call runs none again. Run by CTest, with
#   -DSWEEP=<tutti-sweep>  -DRANGES=<a file of ranges>  -DPROGRAM=<examples/digits>  -DFOLDER=<where it may write>
cmake_minimum_required(VERSION 3.23...3.31)

file(REMOVE_RECURSE "${FOLDER}")
set(command "${SWEEP}" --trials 3 --min_resource 5ba --max_resource 15ba --jobs 2 --folder "${FOLDER}" "${RANGES}" "${PROGRAM}")
execute_process(COMMAND ${command} OUTPUT_VARIABLE table ERROR_VARIABLE said RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${command}\nended with ${failed}:\n${said}${table}")
elseif(NOT table MATCHES "^trial +status +metrics/test/MulticlassAccuracy [^\n]*\n[0-9] +finished +0[.][0-9]+ +15 [^\n]* 15ba ")
  message(FATAL_ERROR "The table has no trial of 15 batches with an accuracy at its top:\n${said}${table}")
endif()
file(STRINGS "${FOLDER}/trials.csv" lines)
list(LENGTH lines count)
if(NOT count EQUAL 4 OR "${lines}" MATCHES "failed")
  message(FATAL_ERROR "trials.csv has ${count} lines, expected 4 without a failed trial:\n${lines}\n${said}")
endif()

execute_process(COMMAND ${command} OUTPUT_VARIABLE again ERROR_VARIABLE said RESULT_VARIABLE failed)
if(failed OR said OR NOT again STREQUAL table)
  message(FATAL_ERROR "Called once more it ended with ${failed}, ran trials or gave another table:\n${said}${again}")
endif()
