# Compiles for 64-bit ARM (Jetson, Graviton, Grace) on another machine with Linux:
#
#   cmake -B build/aarch64 --toolchain cmake/toolchains/aarch64.cmake -DTorch_DIR=<torch of a wheel for aarch64>
#
# The compiler is Debian's (apt-get install g++-12-aarch64-linux-gnu), the newest that is there, or TUTTI_AARCH64_COMPILER.
# Where qemu-user is installed, CMake runs what has been built with it. docs/aarch64.md has the whole way.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

if(NOT TUTTI_AARCH64_COMPILER)
  find_program(TUTTI_AARCH64_COMPILER
    NAMES aarch64-linux-gnu-g++ aarch64-linux-gnu-g++-14 aarch64-linux-gnu-g++-13 aarch64-linux-gnu-g++-12
          aarch64-linux-gnu-g++-11)
  if(NOT TUTTI_AARCH64_COMPILER)
    message(FATAL_ERROR "There is no compiler for aarch64. Install one (apt-get install g++-12-aarch64-linux-gnu), or name it \
with -DTUTTI_AARCH64_COMPILER=<g++>.")
  endif()
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TUTTI_AARCH64_COMPILER)
set(CMAKE_CXX_COMPILER "${TUTTI_AARCH64_COMPILER}")
string(REGEX REPLACE "g[+][+]" "gcc" TUTTI_AARCH64_C "${TUTTI_AARCH64_COMPILER}") # for what is fetched and is C
if(EXISTS "${TUTTI_AARCH64_C}")
  set(CMAKE_C_COMPILER "${TUTTI_AARCH64_C}")
endif()

# Libraries are the target's alone; headers may be the host's, since those of Boost, range-v3 and CLI11 are for any machine.
set(TUTTI_AARCH64_SYSROOT /usr/aarch64-linux-gnu CACHE PATH "The C library for aarch64")
set(CMAKE_FIND_ROOT_PATH "${TUTTI_AARCH64_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)

find_program(TUTTI_QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(TUTTI_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${TUTTI_QEMU_AARCH64};-L;${TUTTI_AARCH64_SYSROOT}")
endif()

# LibTorch's library names others, of BLAS and CUDA, which the linker need not see.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")
