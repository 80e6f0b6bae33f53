# Runs a program that has to fail and to say why on stderr, without a stack trace or abort(). Run by CTest, with
#   -DPROGRAM=<path>  -DARGUMENTS=<list>  -DSTATUS=<its exit status>  -DSAYS=<regex of all that it says there>
cmake_minimum_required(VERSION 3.23...3.31)

execute_process(COMMAND "${PROGRAM}" ${ARGUMENTS} OUTPUT_QUIET ERROR_VARIABLE said RESULT_VARIABLE status)
string(STRIP "${said}" said)
if(NOT status STREQUAL STATUS)
  message(FATAL_ERROR "${PROGRAM} ${ARGUMENTS} ended with ${status}, expected ${STATUS}; it said:\n${said}")
elseif(NOT said MATCHES "^${SAYS}$")
  message(FATAL_ERROR "${PROGRAM} ${ARGUMENTS} said:\n${said}\nexpected: ${SAYS}")
endif()
message("${said}")
