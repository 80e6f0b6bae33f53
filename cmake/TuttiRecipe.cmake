# tutti_check_recipe(<name> <header> <recipe>...)
#
# A check of the build: fails to compile, with tutti's sentence, when the recipe cannot work. <header> declares the
# policies (what stands between <> or "" of an #include); <recipe> is what stands between the <> of tutti::Trainer:
#
#   tutti_check_recipe(imagenet_recipe my/recipe.hpp tutti::MixUp "tutti::With<tutti::EMA{.half_life = \"20ba\"}>" My)
#
# Gives the target <name>, built with everything else; with BUILD_TESTING also the CTest test recipe/<name>.
include_guard(GLOBAL)

function(tutti_check_recipe name header)
  if(NOT ARGN)
    message(FATAL_ERROR "tutti_check_recipe(${name}): no policy is given; name the policies after the header.")
  endif()
  list(JOIN ARGN ", " policies)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.recipe.cpp")
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT
"#include <@header@>
#include <tutti/core/recipe.hpp>
static_assert(tutti::Recipe<@policies@>::valid);
")
  add_library(${name} OBJECT "${source}")
  target_link_libraries(${name} PRIVATE tutti::tutti)
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  if(BUILD_TESTING OR TUTTI_BUILD_TESTS)
    add_test(NAME recipe/${name}
      COMMAND ${CMAKE_COMMAND} --build "${CMAKE_BINARY_DIR}" --target ${name})
  endif()
endfunction()
