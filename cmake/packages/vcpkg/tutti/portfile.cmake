# SPDX-License-Identifier: Apache-2.0
# An overlay port of the checkout that it lies in: vcpkg install tutti --overlay-ports=cmake/packages/vcpkg
# LibTorch is not vcpkg's, whose port is older than tutti needs: Torch_DIR in the environment names one.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)
vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES dashboard TUTTI_WITH_HTTP)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=OFF -DTUTTI_FETCH=OFF ${FEATURE_OPTIONS})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tutti)
vcpkg_fixup_pkgconfig()
set(tools tutti-run)
if("dashboard" IN_LIST FEATURES)
  list(APPEND tools tutti-dashboard)
endif()
vcpkg_copy_tools(TOOL_NAMES ${tools} AUTO_CLEAN)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
  "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE")
