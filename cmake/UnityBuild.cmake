# Several test files compiled as one source, by CMake's UNITY_BUILD: what they all include is read, and what they all
# instantiate is compiled, once.
include_guard(GLOBAL)

# Compiles the files of `target` that have no SKIP_UNITY_BUILD_INCLUSION `most` at a time, or fewer, so that all sources
# are about as long; each apart where `most` is 1. A file's own names stand in the namespace UNITY_BUILD_UNIQUE_ID, a
# macro that CMake defines anew for every file.
function(tutti_unity_build target most)
  if(most LESS 2)
    return()
  endif()
  get_target_property(files ${target} SOURCES)
  list(LENGTH files count)
  math(EXPR sources "(${count} + ${most} - 1) / ${most}")
  math(EXPR size "(${count} + ${sources} - 1) / ${sources}")
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size} UNITY_BUILD_UNIQUE_ID UNITY_BUILD_UNIQUE_ID)
endfunction()
