# A toolchain in which a Release is compiled without optimisation: what the page's commands do is tested, not how fast.
set(CMAKE_CXX_FLAGS_RELEASE "" CACHE STRING "Flags of a Release")
