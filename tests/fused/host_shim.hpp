// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <dlfcn.h>

#include <c10/util/Half.h>

// The compiler that the tests are built with.
#ifndef TUTTI_TEST_COMPILER
#define TUTTI_TEST_COMPILER "c++"
#endif

// What makes a shared library of C++ of the text of a CUDA kernel.
namespace host_kernels {

// What CUDA C++ has and C++ has not.
inline constexpr std::string_view shim = R"cpp(
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's math.h alone: <cmath> takes longer than a kernel
#include <math.h>
#include <string.h>
  struct Dim {
    unsigned x, y, z;
  };
  static Dim blockIdx, threadIdx, blockDim, gridDim;
#define __device__ inline
#define __global__
  inline float __int_as_float(int x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
  }
  inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, 4);
    return y;
  }
  extern "C" {
  unsigned short (*round_to_half)(float);
  }
  inline unsigned short half_bits(float x) {
    return round_to_half(x);
  }
  template <class F>
  void for_all(const unsigned* d, Dim& at, const F& f) {
    for (at.z = 0; at.z < d[2]; ++at.z) {
      for (at.y = 0; at.y < d[1]; ++at.y) {
        for (at.x = 0; at.x < d[0]; ++at.x) {
          f();
        }
      }
    }
  }
  template <class F>
  void for_threads(const unsigned* block, const unsigned* grid, const F& f) {
    blockDim = {block[0], block[1], block[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    for_all(grid, blockIdx, [&] { for_all(block, threadIdx, f); });
  }
)cpp";

inline constexpr std::string_view compile_command =
    "\"" TUTTI_TEST_COMPILER "\" -std=c++17 -O1 -ffp-contract=off -w -shared -fPIC";

/// Gives a library that was made with the shim what it needs.
inline void set_round_to_half(void* library) {
  auto* half = static_cast<unsigned short (**)(float)>(::dlsym(library, "round_to_half"));
  *half = [](float x) { return static_cast<c10::Half>(x).x; };
}

}  // namespace host_kernels
