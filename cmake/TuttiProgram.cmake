# tutti_add_program(<name> <source>...): a program of tutti's that compiles fast after an edit.
#
# Makes the executable <name>, links tutti::separate to it, and lets all such programs of a build share one precompiled
# header. Where the project is the top-level one, Release is its build type unless it has one. What is compiled is
# listed in compile_commands.json unless CMAKE_EXPORT_COMPILE_COMMANDS says no.
#
# A precompiled header fits only programs that are compiled with the same flags. So each set of flags (options, language
# standard, definitions that LibTorch's or tutti's headers look at) gets a header of its own, the first that asks makes
# it: a program with other flags builds as before, and the first build takes longer. They are compared at the end of the
# CMakeLists.txt. Two variables, set before:
#   TUTTI_SHARE_COMPILATION        OFF: each program is compiled by itself, from headers alone; faster for one program once
#   TUTTI_PRECOMPILED_HEADERS      what is in it; default <tutti/tutti.hpp>
include_guard(GLOBAL)

option(TUTTI_SHARE_COMPILATION "Programs made by tutti_add_program share tutti::separate and a precompiled header" ON)
set(TUTTI_PRECOMPILED_HEADERS "<tutti/tutti.hpp>" CACHE STRING "The headers that these programs share")
mark_as_advanced(TUTTI_SHARE_COMPILATION TUTTI_PRECOMPILED_HEADERS)

# What is in the precompiled header is 1.1 GB of GCC's heap: without this it looks through all of it for garbage, a twentieth
# of the time from an edit to the object file. The most memory that it takes, 1.7 GB, is the same.
set(TUTTI_GCC_KEEPS_HEADERS --param=ggc-min-heapsize=1400000)

# Release, where the project in hand is top-level and nobody has chosen.
macro(tutti_default_build_type)
  if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    message(STATUS "tutti: no build type was given; it is Release (give another with -DCMAKE_BUILD_TYPE=...)")
    set(CMAKE_BUILD_TYPE Release CACHE STRING "None, Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
  endif()
endmacro()

function(tutti_add_program name)
  if(NOT ARGN)
    message(FATAL_ERROR "tutti_add_program(${name}): no source is given; name the files to compile, as in \
tutti_add_program(${name} main.cpp).")
  endif()
  tutti_default_build_type()
  add_executable(${name} ${ARGN})
  if(TUTTI_SHARE_COMPILATION)
    target_link_libraries(${name} PRIVATE tutti::separate)
  else()
    target_link_libraries(${name} PRIVATE tutti::tutti)
  endif()
  if("${CMAKE_EXPORT_COMPILE_COMMANDS}" STREQUAL "") # CMake itself defines it, without a value
    set_target_properties(${name} PROPERTIES EXPORT_COMPILE_COMMANDS ON)
  endif()
  if(NOT DEFINED CMAKE_CXX_SCAN_FOR_MODULES) # a scan preprocesses all of LibTorch once more
    set_target_properties(${name} PROPERTIES CXX_SCAN_FOR_MODULES OFF)
  endif()
  if(TUTTI_SHARE_COMPILATION)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:${TUTTI_GCC_KEEPS_HEADERS}>)
    tutti_ccache_options(options)
    if(options)
      target_compile_options(${name} PRIVATE ${options})
    endif()
    # Later, when the project has said all that it has to say of the program.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL tutti_share_headers [[${name}]])")
  endif()
endfunction()

# What ccache needs so that it can keep what was compiled with a precompiled header. The user's part is
# CCACHE_SLOPPINESS=pch_defines,time_macros.
function(tutti_ccache_options out)
  set(${out} "" PARENT_SCOPE)
  if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      set(${out} -fpch-preprocess PARENT_SCOPE)
    elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      set(${out} "SHELL:-Xclang -fno-pch-timestamp" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# The flags that targets bring to those that link them, without tutti's own targets, which all programs link.
function(tutti_linked_flags out)
  set(flags)
  set(seen tutti tutti_separate tutti::tutti tutti::separate tutti::torch)
  set(waiting ${ARGN})
  while(waiting)
    list(POP_FRONT waiting library)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
    if(library IN_LIST seen OR NOT TARGET "${library}")
      continue()
    endif()
    list(APPEND seen "${library}")
    foreach(property IN ITEMS INTERFACE_COMPILE_OPTIONS INTERFACE_COMPILE_DEFINITIONS)
      get_target_property(value "${library}" ${property})
      if(value)
        list(APPEND flags ${value})
      endif()
    endforeach()
    get_target_property(more "${library}" INTERFACE_LINK_LIBRARIES)
    if(more)
      list(APPEND waiting ${more})
    endif()
  endwhile()
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()

# Gives a program the precompiled header of its flags.
function(tutti_share_headers name)
  get_target_property(own ${name} PRECOMPILE_HEADERS)
  get_target_property(reused ${name} PRECOMPILE_HEADERS_REUSE_FROM)
  get_target_property(disabled ${name} DISABLE_PRECOMPILE_HEADERS)
  if(own OR reused OR disabled) # the project's own
    return()
  endif()
  set(properties COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_LIBRARIES CXX_STANDARD CXX_EXTENSIONS
    CXX_VISIBILITY_PRESET VISIBILITY_INLINES_HIDDEN INTERPROCEDURAL_OPTIMIZATION)
  foreach(property IN LISTS properties)
    get_target_property(${property} ${name} ${property})
    if(NOT ${property} AND NOT "${${property}}" STREQUAL "OFF")
      set(${property} "")
    endif()
  endforeach()
  get_target_property(position_independent ${name} POSITION_INDEPENDENT_CODE)
  tutti_linked_flags(linked ${LINK_LIBRARIES})
  # A definition counts when its name is one that the headers in it look at; a program's own may differ.
  set(definitions ${COMPILE_DEFINITIONS})
  list(FILTER definitions INCLUDE REGEX
    "^(-D)?(_|NDEBUG|TUTTI_WITH|TUTTI_SEPARATE|TORCH_|C10_|AT_|USE_|CAFFE2_|BOOST_|RANGES_)|^\\$")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  set(key "${COMPILE_OPTIONS}|${definitions}|${linked}|${CXX_STANDARD}|${CXX_EXTENSIONS}|${CXX_VISIBILITY_PRESET}")
  string(APPEND key "|${VISIBILITY_INLINES_HIDDEN}|${INTERPROCEDURAL_OPTIMIZATION}|${position_independent}")
  string(APPEND key "|${CMAKE_CXX_FLAGS}|${CMAKE_CXX_FLAGS_${config}}|${TUTTI_PRECOMPILED_HEADERS}")
  string(MD5 hash "${key}")
  string(SUBSTRING "${hash}" 0 8 hash)
  set(headers tutti_headers_${hash})
  if(NOT TARGET ${headers})
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${headers}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "// Compiled for the precompiled header that programs share.\n" @ONLY)
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL "${source}")
    foreach(property IN LISTS properties)
      if(NOT "${${property}}" STREQUAL "")
        set_target_properties(${headers} PROPERTIES ${property} "${${property}}")
      endif()
    endforeach()
    set_target_properties(${headers} PROPERTIES COMPILE_DEFINITIONS "${definitions}" CXX_SCAN_FOR_MODULES OFF)
    if(position_independent) # of an executable
      target_compile_options(${headers} PRIVATE -fPIE)
      set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    endif()
    target_precompile_headers(${headers} PRIVATE ${TUTTI_PRECOMPILED_HEADERS})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${headers})
endfunction()
