// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The version of tutti; CMake reads it from here.
#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

#define TUTTI_DETAIL_TEXT(x) #x
#define TUTTI_DETAIL_VERSION(a, b, c) \
  TUTTI_DETAIL_TEXT(a) "." TUTTI_DETAIL_TEXT(b) "." TUTTI_DETAIL_TEXT(c)

/// The same as text: "0.1.0".
#define TUTTI_VERSION \
  TUTTI_DETAIL_VERSION(TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH)
