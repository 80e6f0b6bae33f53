// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Compiler checks, and where the bodies of functions are compiled that are no templates. Included
/// by every header that needs C++20 beyond the basics or has such functions.

#if defined(__clang__) && __clang_major__ < 14
#error "tutti: this compiler is too old; use Clang 14 or newer, or GCC 12 or newer."
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "tutti: this compiler is too old; use GCC 12 or newer, or Clang 14 or newer."
#endif

#if __cplusplus < 202002L
#error "tutti: C++20 is needed; compile with -std=c++20 or set CMAKE_CXX_STANDARD to 20."
#endif

/// By default every source that includes a header compiles what it uses of it. Where all sources of
/// a program define TUTTI_SEPARATE_COMPILATION, headers only declare the functions that cost much
/// to compile, and one source, which includes <tutti/separate.hpp>, compiles them all. In CMake:
/// link tutti::separate instead of tutti::tutti.
///
/// TUTTI_BODIES is 1 where such functions are defined, and TUTTI_INLINE stands before each. With
/// TUTTI_SEPARATE_COMPILATION, TUTTI_TEMPLATE begins an explicit instantiation of what most
/// programs use of a template: the definition in that source, `extern template` everywhere else.
#if !defined(TUTTI_SEPARATE_COMPILATION)
#define TUTTI_BODIES 1
#define TUTTI_INLINE inline
#elif defined(TUTTI_SEPARATE_SOURCE)
#define TUTTI_BODIES 1
#define TUTTI_INLINE
#define TUTTI_TEMPLATE template
#else
#define TUTTI_BODIES 0
#define TUTTI_TEMPLATE extern template
#endif
