# How many lines the preprocessor makes of each header of core/ that reaches no LibTorch header, so that a recipe is checked in
# a tenth of a second, and of trainer.hpp. Compile time follows these numbers, and for GCC 12 and one LibTorch, with which they
# are held, they are the same on every machine. Blank lines are not counted (-E -P). Which headers of LibTorch
# a folder may include is seen in CheckLayers.cmake. A change that needs a higher ceiling says in its commit what for.
#   cmake -DPROJECT_SOURCE_DIR=.. -DCOMPILER=.. -DINCLUDES=.. -DDEFINITIONS=.. -P CheckLines.cmake
cmake_minimum_required(VERSION 3.23...3.31)

set(light_core event tags rule policy check with recipe engine lazy time time_value interval)
set(ceiling_light_core 52000) # with at::Tensor it would be 105000
set(ceiling_trainer 291000)

set(command "${COMPILER}" -std=c++20 -E -P -x c++ /dev/null "-I${PROJECT_SOURCE_DIR}/include")
foreach(folder IN LISTS INCLUDES)
  list(APPEND command -isystem "${folder}")
endforeach()
list(APPEND command -isystem "${PROJECT_SOURCE_DIR}/include/tutti/dist/gloo_shim")
foreach(definition IN LISTS DEFINITIONS)
  if(NOT definition MATCHES "CUDA|NCCL") # counted without, so that the number is the same everywhere
    list(APPEND command "-D${definition}")
  endif()
endforeach()

set(failed OFF)
function(check_lines header ceiling)
  execute_process(COMMAND ${command} -include "tutti/${header}.hpp" COMMAND wc -l
    OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE said RESULTS_VARIABLE codes)
  if(NOT codes STREQUAL "0;0")
    message("${header}.hpp: cannot be preprocessed:\n${said}")
    set(failed ON PARENT_SCOPE)
  elseif(lines GREATER ceiling)
    message("${header}.hpp: ${lines} lines, above the ceiling of ${ceiling}; include less")
    set(failed ON PARENT_SCOPE)
  else()
    message("${header}.hpp: ${lines} lines of ${ceiling}")
  endif()
endfunction()

foreach(header IN LISTS light_core)
  check_lines(core/${header} ${ceiling_light_core})
endforeach()
check_lines(trainer ${ceiling_trainer})
if(failed)
  message(FATAL_ERROR "A header is above its ceiling.")
endif()
