# find_package(tutti): gives tutti::tutti, tutti::separate and tutti_add_program(). LibTorch and the header libraries are found on the user's
# machine in the same way as when tutti itself is built: Torch_DIR, CMAKE_PREFIX_PATH, the torch of the Python in use,
# tutti's own cache.
if(NOT DEFINED TUTTI_WITH_CUDA)
  set(TUTTI_WITH_CUDA AUTO)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/TuttiTorch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TuttiDependencies.cmake)
if(TUTTI_ERROR)
  set(tutti_FOUND FALSE)
  set(tutti_NOT_FOUND_MESSAGE "${TUTTI_ERROR}")
else()
  include(${CMAKE_CURRENT_LIST_DIR}/tuttiTargets.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/TuttiRecipe.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/TuttiSeparate.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/TuttiProgram.cmake)
endif()
