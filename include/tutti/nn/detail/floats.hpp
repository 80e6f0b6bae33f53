// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Eight floats at a time, for loops that are written once and compiled twice: for any processor
// and, on x86-64, with AVX2 in a function that names it and is called where core/detail/cpu.hpp
// says so. Everything in them is always_inline, and takes and gives vectors by reference.
namespace tutti::nn::detail {

using Floats = float __attribute__((vector_size(32)));
using Lanes = std::int32_t __attribute__((vector_size(32)));
inline constexpr std::int64_t lanes = 8;

template <class Vector, class T>
[[gnu::always_inline]] inline void load(Vector& to, const T* from) {
  __builtin_memcpy(&to, from, sizeof(to));
}
template <class Vector, class T>
[[gnu::always_inline]] inline void store(T* to, const Vector& from) {
  __builtin_memcpy(to, &from, sizeof(from));
}

}  // namespace tutti::nn::detail
