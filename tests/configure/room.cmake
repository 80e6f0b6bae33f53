# A disk without room for the build: said before anything is installed, and when it fills while something is built.
cmake_minimum_required(VERSION 3.23...3.31)
include("${TUTTI_SOURCE}/cmake/Setup.cmake")
file(REMOVE_RECURSE "${WORK}")
set(BUILD_DIR "${WORK}/not/yet/there")

# A `df` that says so.
function(set_room kilobytes)
  file(WRITE "${WORK}/bin/df" "#!/bin/sh
echo 'Filesystem     1024-blocks     Used Available Capacity Mounted on'
echo '/dev/a disk 264212084 57470344 ${kilobytes} 58% /'
")
  file(CHMOD "${WORK}/bin/df" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
set(ENV{PATH} "${WORK}/bin:$ENV{PATH}")

function(expect sentence)
  string(FIND "${FAILED}" "${sentence}" at)
  if(at EQUAL -1 OR (FAILED AND NOT sentence))
    message(FATAL_ERROR "said is \"${FAILED}\", expected \"${sentence}\"")
  endif()
endfunction()

foreach(kilobytes IN ITEMS 0 8999999)
  set_room(${kilobytes})
  set(FAILED "")
  setup_need_room(9000)
  expect("The build takes 9000 MB in ${BUILD_DIR}, whose disk has ")
endforeach()
set(FAILED "")
set_room(9000000)
setup_need_room(9000)
expect("")
file(WRITE "${WORK}/bin/df" "#!/bin/sh\nexit 1\n")
setup_need_room(9000)
expect("")

# There is no such build, which fails.
set(JOBS 1)
set_room(4711)
setup_build("what is not there" all)
expect("The build of what is not there failed, and the disk of ${BUILD_DIR} is full")
set(FAILED "")
set_room(4711000)
setup_build("what is not there" all)
expect("The build of what is not there failed; the compiler's first error above says where.")
