# SPDX-License-Identifier: Apache-2.0
# Builds the documentation as a site; any fault ends it.
#   cmake -DOUT=<folder> [-DPYTHON=<python with mkdocs-material>] [-DINSTALL=ON] -P cmake/site/build.cmake
# The Python: the one that is given, else python3 if it has mkdocs-material, else that of the private environment venv-site in
# tutti's cache folder, which INSTALL makes where it is missing. Without one it ends with "skipped: " and the reason, and with
# INSTALL it fails.
cmake_minimum_required(VERSION 3.23...3.31)
include(${CMAKE_CURRENT_LIST_DIR}/packages.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../TuttiTorch.cmake) # tutti_cache_folder()
include(${CMAKE_CURRENT_LIST_DIR}/../Provision.cmake)

if(NOT OUT)
  message(FATAL_ERROR "Give the folder that the site is written to: -DOUT=<folder>.")
endif()
tutti_cache_folder(cache)
set(has "import material, mkdocs, pymdownx; print('yes')")
set(found "")
foreach(candidate IN ITEMS "${PYTHON}" python3 "${cache}/venv-site/bin/python")
  if(candidate AND NOT found AND NOT (candidate MATCHES "venv-site" AND EXISTS "${cache}/venv-site/state"))
    tutti_python_says("${candidate}" "${has}" said)
    if(said STREQUAL "yes")
      set(found "${candidate}")
    endif()
  endif()
endforeach()
if(NOT found AND INSTALL)
  tutti_provision_python(found site ${TUTTI_SITE_PACKAGES}) # says what is wrong
  if(NOT found)
    message(FATAL_ERROR "The site needs a Python with mkdocs-material, and none could be had; the lines above say why. Install \
it with \"pip install mkdocs-material\" and give that Python with -DPYTHON=<python>.")
  endif()
elseif(NOT found)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "skipped: no Python here has mkdocs-material; the target docs makes one in \
${cache}/venv-site, and TUTTI_SITE_PYTHON names another")
  return()
endif()

execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1
          "${found}" -m mkdocs build --strict --config-file "${CMAKE_CURRENT_LIST_DIR}/mkdocs.yml" --site-dir "${OUT}"
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "The site has the faults that are listed above: links and anchors that lead nowhere, pages that \
docs/README.md does not name, public names without a /// block.")
endif()
message(STATUS "tutti: the site is in ${OUT}; look at it with python3 -m http.server --bind 127.0.0.1 --directory ${OUT}")
