# SPDX-License-Identifier: Apache-2.0
# A first project of your own: copies examples/template under the name that you give, and says what to run next.
#   cmake -P cmake/new_project.cmake my_project                        the folder my_project, where you are
#   cmake -DDIRECTORY=<folder> -P cmake/new_project.cmake my_project   the folder my_project in <folder>
# The folder appears when it is complete; what fails before leaves nothing.
cmake_minimum_required(VERSION 3.23...3.31)
get_filename_component(SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/.." REALPATH)
set(usage "cmake -P cmake/new_project.cmake my_project")

# The text `old` of a file of the new project becomes `new`. Each must be there, or the template and this script disagree.
function(replace_in file old new)
  file(READ "${file}" text)
  string(FIND "${text}" "${old}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${file} has no ${old}")
  endif()
  string(REPLACE "${old}" "${new}" text "${text}")
  file(WRITE "${file}" "${text}")
  file(READ "${file}" written)
  if(NOT written STREQUAL text)
    message(FATAL_ERROR "${file} could be written only in part")
  endif()
endfunction()

# Backslashes, quotes and dollars, as they stand in a string of CMake.
function(quoted out text)
  string(REGEX REPLACE "([\\\\\"$])" "\\\\\\1" text "${text}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# The second half, a process of its own, so that a failure at any place comes back to the first: fills the folder TO.
if(TO)
  foreach(file IN ITEMS .gitignore CMakeLists.txt CMakePresets.json README.md main.cpp penguins.csv predict.py)
    file(COPY "${SOURCE_DIR}/examples/template/${file}" DESTINATION "${TO}" NO_SOURCE_PERMISSIONS)
  endforeach()
  foreach(file IN ITEMS CMakeLists.txt README.md main.cpp predict.py)
    replace_in("${TO}/${file}" my_project "${NAME}")
  endforeach()
  quoted(repository "${REPOSITORY}")
  replace_in("${TO}/CMakeLists.txt" "\${CMAKE_CURRENT_SOURCE_DIR}/../.." "${repository}")
  replace_in("${TO}/CMakeLists.txt" "GIT_TAG HEAD" "GIT_TAG ${TAG}")
  string(REPLACE "\\" "\\\\" checkout "${SOURCE_DIR}")
  string(REPLACE "\"" "\\\"" checkout "${checkout}")
  string(REPLACE "$" "\${dollar}" checkout "${checkout}")
  replace_in("${TO}/CMakePresets.json" "\${sourceDir}/../.." "${checkout}")
  return()
endif()

# Where tutti can be fetched from: the address of this checkout's origin when the commit is there, else the checkout
# itself. Passwords in an address are left out.
function(find_repository out_repository out_tag)
  set(${out_repository} "${SOURCE_DIR}" PARENT_SCOPE)
  set(${out_tag} HEAD PARENT_SCOPE)
  find_program(git git NO_CACHE)
  if(NOT git OR NOT EXISTS "${SOURCE_DIR}/.git")
    return()
  endif()
  execute_process(COMMAND "${git}" -C "${SOURCE_DIR}" rev-parse --verify HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    return()
  endif()
  set(${out_tag} "${commit}" PARENT_SCOPE)
  execute_process(COMMAND "${git}" -C "${SOURCE_DIR}" remote get-url origin
    OUTPUT_VARIABLE address OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  execute_process(COMMAND "${git}" -C "${SOURCE_DIR}" branch --remotes --contains "${commit}" --list "origin/*"
    OUTPUT_VARIABLE branches OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND branches AND address MATCHES "^/|^[^/]+:") # a relative path is one from here alone
    string(REGEX REPLACE "^(https?://)[^/@]*@" "\\1" address "${address}")
    set(${out_repository} "${address}" PARENT_SCOPE)
  endif()
endfunction()

# The argument behind the script, a name or a path. Options stand before -P: CMake gives a script only those.
set(script 0)
set(argument "")
foreach(i RANGE 1 ${CMAKE_ARGC})
  set(word "${CMAKE_ARGV${i}}")
  if(NOT script)
    if(word STREQUAL "-P")
      math(EXPR script "${i} + 1")
    endif()
  elseif(i GREATER script AND NOT word STREQUAL "" AND NOT word STREQUAL "--")
    if(word MATCHES "^-")
      message(FATAL_ERROR "${word} stands behind the name of the script, where CMake reads no option; write it before -P.")
    elseif(argument)
      message(FATAL_ERROR "Two names are given, ${argument} and ${word}, expected one: ${usage}")
    endif()
    set(argument "${word}")
  endif()
endforeach()
if(NOT argument AND NOT DIRECTORY)
  message(FATAL_ERROR "The new project has no name; give one: ${usage}")
endif()
get_filename_component(target "${DIRECTORY}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
get_filename_component(target "${argument}" ABSOLUTE BASE_DIR "${target}")
get_filename_component(name "${target}" NAME)
get_filename_component(parent "${target}" DIRECTORY)

set(taken all clean depend edit_cache help install list_install_components main package package_source preinstall
  rebuild_cache test CMakeFiles Makefile Testing)
if(NOT name MATCHES "^[A-Za-z][A-Za-z0-9_-]*$")
  message(FATAL_ERROR "\"${name}\" cannot be the name of a project, since the program is called so; take letters, digits, \
\"_\" and \"-\", and begin with a letter: ${usage}")
elseif(name IN_LIST taken OR name MATCHES "^tutti")
  message(FATAL_ERROR "\"${name}\" cannot be the name of a project: CMake or tutti has a target of that name. Take \
another: ${usage}")
elseif(EXISTS "${target}" OR IS_SYMLINK "${target}")
  message(FATAL_ERROR "${target} exists already, and nothing in it was changed; take another name, or move it away.")
elseif(NOT IS_DIRECTORY "${parent}")
  message(FATAL_ERROR "There is no folder ${parent} in which ${name} could be made; make it, or choose another with \
-DDIRECTORY=<folder> before -P.")
endif()

# Filled beside its place, then renamed.
set(partial "${parent}/.${name}.partial")
find_repository(repository tag)
file(REMOVE_RECURSE "${partial}")
execute_process(COMMAND "${CMAKE_COMMAND}" "-DTO=${partial}" "-DNAME=${name}" "-DREPOSITORY=${repository}" "-DTAG=${tag}"
  -P "${CMAKE_CURRENT_LIST_FILE}" RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(NOT failed)
  file(RENAME "${partial}" "${target}" RESULT said)
  if(said)
    set(failed ON)
  endif()
endif()
if(failed)
  file(REMOVE_RECURSE "${partial}")
  string(REGEX REPLACE "[ \n]+" " " said "${said} ${failed}")
  string(REGEX REPLACE "^ ?CMake Error at .* \\([a-z]+\\): | (1|ON)$" "" said "${said}")
  message(FATAL_ERROR "${target} could not be made, and nothing is left of it; check the rights and the room on the \
disk. The system said: ${said}")
endif()

if(target MATCHES " ")
  set(target "\"${target}\"")
endif()
message("-- ${target} is ready; it trains a network on penguins.csv. Next:")
message("     cd ${target}")
message("     cmake --preset default && cmake --build --preset default")
message("     build/${name}")
