# tutti::hana and tutti::range_v3, for the tests tutti_find_catch2(), for command lines tutti_find_cli11(), for images
# tutti_find_jpeg() and tutti_find_png(), for MLflowLogger tutti_find_http(). Each is looked for as usual; in the two set-up
# scripts (TUTTI_SETUP) Debian's packages are installed when missing; else the sources of all but libjpeg, libpng and
# cpp-httplib are fetched, pinned by hash.
# Sets TUTTI_ERROR to one sentence when something cannot be had. Installed with tutti, for find_package(tutti).
include_guard(GLOBAL)

option(TUTTI_FETCH "Fetch the sources of header libraries that are not installed" ON)
option(TUTTI_WITH_JPEG "Look for libjpeg where tutti_find_jpeg() is called" ON)
option(TUTTI_WITH_HTTP "Look for cpp-httplib where tutti_find_http() is called" ON)
option(TUTTI_WITH_PNG "Look for libpng where tutti_find_png() is called" ON)

# Each is (commit of the release, named in the comment). A git commit is a hash of what is fetched.
set(TUTTI_HANA_SOURCE https://github.com/boostorg/hana.git e820551959996bc031e72622fd731e9e7acd95b0)         # 1.84.0
set(TUTTI_RANGE_SOURCE https://github.com/ericniebler/range-v3.git a81477931a8aa2ad025c6bda0609f38e09e4d7ec) # 0.12.0
set(TUTTI_CLI11_SOURCE https://github.com/CLIUtils/CLI11.git 6c7b07a878ad834957b98d0f9ce1dbe0cb204fc9)       # 2.4.2
set(TUTTI_CATCH2_SOURCE https://github.com/catchorg/Catch2.git fa43b77429ba76c462b1898d6cd2f2d7a9416b14)     # 3.7.1
set(TUTTI_DEPENDENCIES_LIST_DIR ${CMAKE_CURRENT_LIST_DIR})

# Installs Debian's package of that name where that may be done; says nothing when it may not.
function(tutti_install_package package)
  if(TUTTI_SETUP)
    include("${TUTTI_DEPENDENCIES_LIST_DIR}/Provision.cmake")
    tutti_provision_packages(${package})
  endif()
endfunction()

# A header-only library as an imported target: `header` is looked for in the usual places, then in what was fetched.
function(tutti_header_library target header package fetched)
  set(variable "TUTTI_${target}_INCLUDE")
  find_path(${variable} ${header} HINTS ${ARGN})
  if(NOT ${variable})
    tutti_install_package(${package})
    find_path(${variable} ${header} HINTS ${ARGN})
  endif()
  if(NOT ${variable} AND TUTTI_FETCH)
    list(GET fetched 0 url)
    list(GET fetched 1 commit)
    message(STATUS "tutti: fetching ${url} at ${commit}")
    include(FetchContent)
    # Only the headers are wanted: no submodule, and a SOURCE_SUBDIR that is not there keeps its CMake project out.
    FetchContent_Declare(tutti_${target}
      GIT_REPOSITORY ${url} GIT_TAG ${commit} GIT_SUBMODULES "" SOURCE_SUBDIR headers_only)
    FetchContent_MakeAvailable(tutti_${target})
    find_path(${variable} ${header} PATHS "${tutti_${target}_SOURCE_DIR}/include" NO_DEFAULT_PATH)
  endif()
  mark_as_advanced(${variable})
  if(NOT ${variable})
    set(TUTTI_ERROR "<${header}> was not found; install it with \"apt-get install ${package}\"." PARENT_SCOPE)
    return()
  endif()
  add_library(tutti::${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(tutti::${target} INTERFACE "${${variable}}")
endfunction()

if(NOT TUTTI_ERROR)
  tutti_header_library(hana boost/hana.hpp libboost-dev "${TUTTI_HANA_SOURCE}"
                       ${Boost_INCLUDE_DIRS} ${BOOST_ROOT}/include $ENV{BOOST_ROOT}/include)
endif()
if(NOT TUTTI_ERROR)
  tutti_header_library(range_v3 range/v3/version.hpp librange-v3-dev "${TUTTI_RANGE_SOURCE}")
endif()

# CLI11 as tutti::cli11, to be linked beside tutti::tutti by programs that include tutti/cli.hpp. TUTTI_ERROR says when it
# cannot be had.
macro(tutti_find_cli11)
  if(NOT TARGET tutti::cli11)
    tutti_header_library(cli11 CLI/CLI.hpp libcli11-dev "${TUTTI_CLI11_SOURCE}")
    if(TUTTI_ERROR)
      message(FATAL_ERROR "${TUTTI_ERROR}")
    endif()
  endif()
endmacro()

# Catch2 2.13 or 3: the target is Catch2::Catch2 in both.
macro(tutti_find_catch2)
  find_package(Catch2 QUIET)
  if(NOT Catch2_FOUND)
    tutti_install_package(catch2)
    find_package(Catch2 QUIET)
  endif()
  if(NOT Catch2_FOUND AND TUTTI_FETCH)
    message(STATUS "tutti: fetching Catch2")
    include(FetchContent)
    list(GET TUTTI_CATCH2_SOURCE 0 url)
    list(GET TUTTI_CATCH2_SOURCE 1 commit)
    FetchContent_Declare(Catch2 GIT_REPOSITORY ${url} GIT_TAG ${commit} GIT_SUBMODULES "")
    FetchContent_MakeAvailable(Catch2)
  endif()
  if(NOT TARGET Catch2::Catch2)
    message(FATAL_ERROR "Catch2 was not found; install it with \"apt-get install catch2\".")
  endif()
endmacro()

# A library that decodes images as tutti::<name>. Where it is missing there is no such target, and the reason is printed
# once. `module` is its find module in CMake, `package` Debian's name for it.
function(tutti_find_image_library name module package)
  get_property(looked GLOBAL PROPERTY TUTTI_LOOKED_FOR_${module})
  if(looked)
    return()
  endif()
  set_property(GLOBAL PROPERTY TUTTI_LOOKED_FOR_${module} ON)
  set(missing "TUTTI_WITH_${module} is off")
  if(TUTTI_WITH_${module})
    find_package(${module} QUIET)
    if(NOT ${module}_FOUND)
      tutti_install_package(${package})
      find_package(${module} QUIET)
    endif()
    set(missing "lib${name} was not found (apt-get install ${package})")
  endif()
  if(NOT ${module}_FOUND)
    message(STATUS "tutti: ${missing}; ${module} images are not read, and their tests are left out")
    return()
  endif()
  add_library(tutti::${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(tutti::${name} INTERFACE ${${module}_INCLUDE_DIRS})
  target_link_libraries(tutti::${name} INTERFACE ${${module}_LIBRARIES})
  target_compile_definitions(tutti::${name} INTERFACE TUTTI_WITH_${module}=1)
endfunction()

# libjpeg as tutti::jpeg and libpng as tutti::png, to be linked beside tutti::tutti by what decodes with data/jpeg.hpp,
# data/png.hpp or data/image_folder.hpp.
function(tutti_find_jpeg)
  tutti_find_image_library(jpeg JPEG libjpeg-dev)
endfunction()
function(tutti_find_png)
  tutti_find_image_library(png PNG libpng-dev)
endfunction()

# The target of cpp-httplib: its own CMake package, else pkg-config's (Debian 12), else the header alone, which then
# speaks no TLS. Sets ${out} to the target's name, or to nothing.
function(tutti_httplib_target out)
  find_package(httplib QUIET CONFIG)
  if(NOT TARGET httplib::httplib)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
      pkg_check_modules(TUTTI_HTTPLIB QUIET IMPORTED_TARGET GLOBAL cpp-httplib)
    endif()
    find_path(TUTTI_HTTPLIB_INCLUDE httplib.h)
    mark_as_advanced(TUTTI_HTTPLIB_INCLUDE)
  endif()
  set(${out} "" PARENT_SCOPE)
  if(TARGET httplib::httplib)
    set(${out} httplib::httplib PARENT_SCOPE)
  elseif(TARGET PkgConfig::TUTTI_HTTPLIB)
    set(${out} PkgConfig::TUTTI_HTTPLIB PARENT_SCOPE)
  elseif(TUTTI_HTTPLIB_INCLUDE)
    file(STRINGS "${TUTTI_HTTPLIB_INCLUDE}/httplib.h" bodies REGEX "^inline .*Client::Get" LIMIT_COUNT 1)
    find_package(Threads QUIET)
    if(bodies AND Threads_FOUND) # a header that was split needs its library, of which we know nothing here
      add_library(tutti_httplib INTERFACE IMPORTED GLOBAL)
      target_include_directories(tutti_httplib INTERFACE "${TUTTI_HTTPLIB_INCLUDE}")
      target_link_libraries(tutti_httplib INTERFACE Threads::Threads)
      set(${out} tutti_httplib PARENT_SCOPE)
    endif()
  endif()
endfunction()

# cpp-httplib as tutti::http, to be linked beside tutti::tutti by what sends with loggers/mlflow.hpp. Where it is missing
# there is no such target, and the reason is printed once.
function(tutti_find_http)
  get_property(looked GLOBAL PROPERTY TUTTI_LOOKED_FOR_HTTP)
  if(looked)
    return()
  endif()
  set_property(GLOBAL PROPERTY TUTTI_LOOKED_FOR_HTTP ON)
  set(missing "TUTTI_WITH_HTTP is off")
  if(TUTTI_WITH_HTTP)
    tutti_httplib_target(target)
    if(NOT target AND TUTTI_SETUP)
      tutti_install_package(libcpp-httplib-dev)
      find_program(pkg_config NAMES pkg-config pkgconf NO_CACHE)
      if(NOT pkg_config)
        tutti_install_package(pkg-config)
      endif()
      tutti_httplib_target(target)
    endif()
    set(missing "cpp-httplib was not found (apt-get install libcpp-httplib-dev pkg-config)")
  endif()
  if(NOT target)
    message(STATUS "tutti: ${missing}; MLflowLogger reaches no server, and its tests over HTTP are left out")
    return()
  endif()
  add_library(tutti::http INTERFACE IMPORTED GLOBAL)
  target_link_libraries(tutti::http INTERFACE ${target})
  target_compile_definitions(tutti::http INTERFACE TUTTI_WITH_HTTP=1)
endfunction()
