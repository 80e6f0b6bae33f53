#pragma once

/// Compiler checks. Included first by every header that needs C++20 beyond the basics.

#if defined(__clang__) && __clang_major__ < 14
#error "tutti: this compiler is too old; use Clang 14 or newer, or GCC 12 or newer."
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "tutti: this compiler is too old; use GCC 12 or newer, or Clang 14 or newer."
#endif

#if __cplusplus < 202002L
#error "tutti: C++20 is needed; compile with -std=c++20 or set CMAKE_CXX_STANDARD to 20."
#endif
