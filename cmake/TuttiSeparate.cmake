# tutti::separate: tutti with the functions that are no templates compiled once, in a library, so that what links it
# compiles faster. The library is made in the project that uses it, with that project's flags, when something links it.
# The sources of one program link either this or tutti::tutti, not some this and some that.
if(NOT TARGET tutti_separate) # find_package may be called in several folders
  set(tutti_separate_sources)
  foreach(part 1 2) # compiled at the same time
    set(tutti_separate_source ${CMAKE_CURRENT_BINARY_DIR}/tutti_separate_${part}.cpp)
    file(CONFIGURE OUTPUT ${tutti_separate_source} CONTENT "#define TUTTI_SEPARATE_PART ${part}\n#include <tutti/separate.hpp>\n" @ONLY)
    list(APPEND tutti_separate_sources ${tutti_separate_source})
  endforeach()
  add_library(tutti_separate STATIC EXCLUDE_FROM_ALL ${tutti_separate_sources})
  add_library(tutti::separate ALIAS tutti_separate)
  target_compile_definitions(tutti_separate PUBLIC TUTTI_SEPARATE_COMPILATION)
  target_link_libraries(tutti_separate PUBLIC tutti::tutti PRIVATE $<TARGET_NAME_IF_EXISTS:tutti::cli11>) # for cli.hpp
  set_target_properties(tutti_separate PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
endif()
