// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tutti/config.hpp>
#include <tutti/core/detail/cpu.hpp>

// A memcpy for what nobody reads soon: it writes past the caches.
//
// An ordinary store reads the line that it overwrites, which is a third of the traffic of a large
// copy, and puts out of the caches what training reads next. The C library knows better only above
// a size that it takes from what the machine says of its caches, which in virtual machines is often
// hundreds of megabytes.

namespace tutti::checkpoint::detail {

/// Below this many bytes a copy is an ordinary one.
inline constexpr std::size_t least_streamed = 64 << 10;

#if defined(__x86_64__)
/// `blocks` times 128 bytes; `to` is a multiple of 32.
[[gnu::target("avx2,fma")]] inline void stream_blocks(char* to, const char* from,
                                                      std::size_t blocks) {
  using Bytes = float __attribute__((vector_size(32)));
  for (; blocks > 0; --blocks, to += 4 * sizeof(Bytes), from += 4 * sizeof(Bytes)) {
    Bytes a;
    Bytes b;
    Bytes c;
    Bytes d;
    __builtin_memcpy(&a, from, sizeof(Bytes));
    __builtin_memcpy(&b, from + sizeof(Bytes), sizeof(Bytes));
    __builtin_memcpy(&c, from + 2 * sizeof(Bytes), sizeof(Bytes));
    __builtin_memcpy(&d, from + 3 * sizeof(Bytes), sizeof(Bytes));
    __asm__ volatile(
        "vmovntps {%1, (%0)|[%0], %1}\n\tvmovntps {%2, 32(%0)|[%0+32], %2}\n\t"
        "vmovntps {%3, 64(%0)|[%0+64], %3}\n\tvmovntps {%4, 96(%0)|[%0+96], %4}"
        :
        : "r"(to), "x"(a), "x"(b), "x"(c), "x"(d)
        : "memory");
  }
  __asm__ volatile("sfence" ::: "memory");  // other threads see all of it, in any order of theirs
}
#endif

/// Copies `bytes` bytes between places that do not overlap.
void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace tutti::checkpoint::detail

#if TUTTI_BODIES

namespace tutti::checkpoint::detail {

TUTTI_INLINE void stream_copy(void* to, const void* from, std::size_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
#if defined(__x86_64__)
  constexpr std::size_t block = 128;
  if (bytes >= least_streamed && ::tutti::detail::has_avx2()) {
    const std::size_t head = (block - reinterpret_cast<std::uintptr_t>(out) % block) % block;
    const std::size_t blocks = (bytes - head) / block;
    std::memcpy(out, in, head);
    stream_blocks(out + head, in + head, blocks);
    out += head + blocks * block;
    in += head + blocks * block;
    bytes -= head + blocks * block;
  }
#endif
  std::memcpy(out, in, bytes);
}

}  // namespace tutti::checkpoint::detail

#endif
