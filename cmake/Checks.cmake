# CTest tests that read the sources: layers, length of the preprocessed headers, documentation, format.
set(check_arguments -DPROJECT_SOURCE_DIR=${PROJECT_SOURCE_DIR})

add_test(NAME check/layers COMMAND ${CMAKE_COMMAND} ${check_arguments} -P ${PROJECT_SOURCE_DIR}/cmake/CheckLayers.cmake)
add_test(NAME check/docs COMMAND ${CMAKE_COMMAND} ${check_arguments} -P ${PROJECT_SOURCE_DIR}/cmake/CheckDocs.cmake)

# How many lines the compiler reads for core/ and for trainer.hpp.
if(NOT TUTTI_IS_PINNED OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  tutti_skipped_test(check/lines "the ceilings are those of GCC 12 with LibTorch ${TUTTI_TORCH_PINNED}")
else()
  get_target_property(torch_includes tutti::torch INTERFACE_INCLUDE_DIRECTORIES)
  get_target_property(torch_definitions tutti::torch INTERFACE_COMPILE_DEFINITIONS)
  set(includes ${torch_includes} ${TUTTI_hana_INCLUDE} ${TUTTI_range_v3_INCLUDE})
  list(REMOVE_ITEM includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  add_test(NAME check/lines
    COMMAND ${CMAKE_COMMAND} ${check_arguments} -DCOMPILER=${CMAKE_CXX_COMPILER} "-DINCLUDES=${includes}"
            "-DDEFINITIONS=${torch_definitions}" -P ${PROJECT_SOURCE_DIR}/cmake/CheckLines.cmake)
  set_tests_properties(check/lines PROPERTIES LABELS check TIMEOUT 300)
endif()
set_tests_properties(check/layers check/docs PROPERTIES LABELS check)

if(TUTTI_clang_format)
  add_test(NAME check/format COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target format-check)
  set_tests_properties(check/format PROPERTIES LABELS check)
else()
  tutti_skipped_test(check/format "clang-format ${TUTTI_CLANG_FORMAT} was not found")
endif()
