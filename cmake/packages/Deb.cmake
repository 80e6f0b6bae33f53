# SPDX-License-Identifier: Apache-2.0
# What `cpack -G DEB`, in a build folder, makes: one package with the headers, the CMake package and the programs.
# LibTorch is no dependency of it: Debian's is older than tutti needs, and find_package(tutti) looks for one as ever.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libtutti-dev)
set(CPACK_PACKAGE_VENDOR "The tutti authors")
set(CPACK_PACKAGE_CONTACT "The tutti authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION "tutti is a header-only C++20 library that trains neural networks on LibTorch. A training recipe is a list of
types, which the compiler checks, orders and inlines into the loop.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libboost-dev (>= 1.74), librange-v3-dev (>= 0.12)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake (>= 3.23), g++ (>= 4:12)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libcli11-dev, libjpeg-dev, libpng-dev, libutf8proc-dev, libcpp-httplib-dev")
find_program(TUTTI_dpkg_shlibdeps dpkg-shlibdeps)
mark_as_advanced(TUTTI_dpkg_shlibdeps)
if(TUTTI_dpkg_shlibdeps)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
include(CPack)
