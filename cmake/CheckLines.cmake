# How many lines the preprocessor makes of each header of one folder, against the folder's ceiling. Compile time follows
# this number, and for GCC 12 and one LibTorch, with which it is held, it is the same on every machine. Blank lines are not counted (-E -P). A ceiling is what the
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
set(ceiling_optim_modules 258000) # closure.hpp has LibTorch's LBFGS, whose header includes modules; groups.hpp goes through a module
set(ceiling_tutti 372000) # everything at once, c10d, CUDA and what views need of range-v3 included; never included by the library
set(ceiling_callbacks_modules 271000) # hugging_face_checkpointer.hpp merges adapters
set(ceiling_algorithms 268000)
set(ceiling_algorithms_adapters 274000) # lora.hpp reads and writes files of adapters
set(ceiling_nn 265000)
set(ceiling_models 277000)
set(ceiling_models_families 287000) # auto_model.hpp and tensor_parallel.hpp have every family
set(ceiling_dist 266000)
set(ceiling_data 185000)
set(ceiling_views 195000)
set(ceiling_checkpoint 257000)
set(ceiling_sweep 85000) # no LibTorch
set(ceiling_text 70000) # no tensors; libutf8proc is not counted
set(ceiling_train 289000) # every run reads and writes sharded checkpoints, too
set(ceiling_trainer 291000)
set(ceiling_explain 291000)
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
set(module_callbacks activation_monitor generate hugging_face_checkpointer load_checkpoint memory_monitor optimizer_monitor prediction_writer remote_uploader)

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

# Preprocesses the headers given, all at once. Headers that are below their ceiling together are so one by one; where they
# are not, each half of them is tried.
set(failed OFF)
function(check_together ceiling)
  list(TRANSFORM ARGN PREPEND "-include;" OUTPUT_VARIABLE included)
  execute_process(COMMAND ${command} ${included} COMMAND wc -l
    OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE said RESULTS_VARIABLE codes)
  list(LENGTH ARGN count)
  cmake_path(GET ARGV1 STEM stem)
  if(count GREATER 1)
    math(EXPR others "${count} - 1")
    string(APPEND stem ".hpp and ${others} more, together")
  else()
    string(APPEND stem ".hpp")
  endif()
  if(NOT codes STREQUAL "0;0")
    message("${FOLDER}/${stem}: cannot be preprocessed:\n${said}")
    set(failed ON PARENT_SCOPE)
  elseif(lines LESS_EQUAL ceiling)
    message("${FOLDER}/${stem}: ${lines} lines of ${ceiling}")
  elseif(count EQUAL 1)
    message("${FOLDER}/${stem}: ${lines} lines, above the ceiling of ${ceiling}; include less")
    set(failed ON PARENT_SCOPE)
  else()
    math(EXPR half "${count} / 2")
    list(SUBLIST ARGN 0 ${half} first)
    list(SUBLIST ARGN ${half} -1 second)
    check_together(${ceiling} ${first})
    check_together(${ceiling} ${second})
    set(failed ${failed} PARENT_SCOPE)
  endif()
endfunction()

set(ceilings)
foreach(header IN LISTS headers)
  cmake_path(GET header STEM stem)
  set(ceiling ${ceiling_${FOLDER}})
  if(FOLDER STREQUAL "core" AND NOT stem IN_LIST light_core)
    set(ceiling ${ceiling_core_tensors})
  elseif(FOLDER STREQUAL "losses" AND stem IN_LIST own_gradient)
    set(ceiling ${ceiling_losses_gradient})
  elseif(FOLDER STREQUAL "fused" AND stem IN_LIST fused_recipe)
    set(ceiling ${ceiling_fused_recipe})
  elseif(FOLDER STREQUAL "algorithms" AND stem STREQUAL "lora")
    set(ceiling ${ceiling_algorithms_adapters})
  elseif(FOLDER STREQUAL "models" AND stem MATCHES "^(auto_model|tensor_parallel)$")
    set(ceiling ${ceiling_models_families})
  elseif(FOLDER STREQUAL "optim" AND stem MATCHES "^(closure|groups)$")
    set(ceiling ${ceiling_optim_modules})
  elseif(FOLDER STREQUAL "callbacks" AND stem IN_LIST module_callbacks)
    set(ceiling ${ceiling_callbacks_modules})
  endif()
  list(APPEND ceilings ${ceiling})
  list(APPEND below_${ceiling} ${header})
endforeach()
list(REMOVE_DUPLICATES ceilings)

foreach(ceiling IN LISTS ceilings)
  check_together(${ceiling} ${below_${ceiling}})
endforeach()
if(failed)
  message(FATAL_ERROR "A header of ${FOLDER} is above its ceiling.")
endif()
