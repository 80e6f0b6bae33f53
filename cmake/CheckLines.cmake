# How many lines the preprocessor makes of each header of one folder, against the folder's ceiling. Compile time follows
# this number, and for one compiler it is the same on every machine. Blank lines are not counted (-E -P). A ceiling is what the
# largest header of the folder has, plus two percent or so: one that needs more says in its commit what for.
#   cmake -DPROJECT_SOURCE_DIR=.. -DFOLDER=core -DCOMPILER=.. -DINCLUDES=.. -DDEFINITIONS=.. -P CheckLines.cmake
cmake_minimum_required(VERSION 3.23...3.31)

set(ceiling_fwd 1000)
set(ceiling_config 1000)
set(ceiling_version 1000)
set(ceiling_core 52000)
set(ceiling_core_tensors 115000) # headers of core that name at::Tensor
set(ceiling_callbacks 128000)
set(ceiling_loggers 125000)
set(ceiling_profiler 140000) # torch_profiler.hpp has Kineto's header
set(ceiling_losses 174000)
set(ceiling_losses_gradient 231000) # headers of losses with a gradient of their own, an autograd function
set(ceiling_metrics 174000)
set(ceiling_fused 165000)
set(ceiling_fused_recipe 245000) # the engine of recipes that fuse, which ends in a loss with a gradient of its own
set(ceiling_optim 115000)
set(ceiling_tutti 315000) # everything at once, c10d and CUDA included; never included by the library
set(ceiling_callbacks_modules 268000)
set(ceiling_algorithms 268000)
set(ceiling_nn 265000)
set(ceiling_models 268000)
set(ceiling_dist 266000)
set(ceiling_data 185000)
set(ceiling_checkpoint 257000)
set(ceiling_train 282000)
set(ceiling_trainer 284000)
set(ceiling_explain 284000)
set(ceiling_failure 46000)
set(ceiling_cli 285000)
if(NOT DEFINED ceiling_${FOLDER})
  message(FATAL_ERROR "the folder \"${FOLDER}\" has no ceiling; give it one in cmake/CheckLines.cmake")
endif()
set(own_gradient mixed_cross_entropy)
set(fused_recipe engine normalize stages)
# These parts of core stay free of LibTorch, so that a recipe is checked and tested in a tenth of a second.
set(light_core event tags rule policy check with recipe engine lazy time time_value interval)
# Callbacks that walk through the model's modules, ask the device's allocator, or read and write whole checkpoints.
set(module_callbacks activation_monitor generate load_checkpoint memory_monitor optimizer_monitor remote_uploader)

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

file(GLOB_RECURSE headers "${PROJECT_SOURCE_DIR}/include/tutti/${FOLDER}/*.hpp")
if(NOT headers)
  set(headers "${PROJECT_SOURCE_DIR}/include/tutti/${FOLDER}.hpp")
endif()
list(FILTER headers EXCLUDE REGEX "/detail/") # counted where they are included
set(failed OFF)
foreach(header IN LISTS headers)
  execute_process(COMMAND ${command} -include "${header}" COMMAND wc -l
    OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE said RESULTS_VARIABLE codes)
  cmake_path(GET header STEM stem)
  set(ceiling ${ceiling_${FOLDER}})
  if(FOLDER STREQUAL "core" AND NOT stem IN_LIST light_core)
    set(ceiling ${ceiling_core_tensors})
  elseif(FOLDER STREQUAL "losses" AND stem IN_LIST own_gradient)
    set(ceiling ${ceiling_losses_gradient})
  endif()
  if(FOLDER STREQUAL "fused" AND stem IN_LIST fused_recipe)
    set(ceiling ${ceiling_fused_recipe})
  endif()
  if(FOLDER STREQUAL "callbacks" AND stem IN_LIST module_callbacks)
    set(ceiling ${ceiling_callbacks_modules})
  endif()
  if(NOT codes STREQUAL "0;0")
    message("${FOLDER}/${stem}.hpp cannot be preprocessed:\n${said}")
    set(failed ON)
  elseif(lines GREATER ceiling)
    message("${FOLDER}/${stem}.hpp: ${lines} lines, above the ceiling of ${ceiling}; include less")
    set(failed ON)
  else()
    message("${FOLDER}/${stem}.hpp: ${lines} lines of ${ceiling}")
  endif()
endforeach()
if(failed)
  message(FATAL_ERROR "A header of ${FOLDER} is above its ceiling.")
endif()
