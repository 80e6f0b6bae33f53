# step(<command>...): a step of the test consume/<WAY>.
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code)
  if(code)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "consume/${WAY}: this failed: ${line}")
  endif()
endfunction()
