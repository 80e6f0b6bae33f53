// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <sys/mman.h>

namespace tutti::detail {

/// From this many bytes on, memory comes from the system for one tensor and goes back to it whole.
inline constexpr std::size_t least_in_huge_pages = 32 << 20;

/// Asks for pages of 2 MiB behind a CPU tensor that nobody has written to yet.
///
/// In pages of 4 KiB a large tensor costs more for the faults of its first touch than for what is
/// written: 64 images of 3 x 224 x 224 floats 11 ms, in huge pages 1. A hint, so it never fails;
/// nothing for small tensors, whose memory the program keeps and uses again.
inline void hint_huge_pages(const at::Tensor& fresh) {
#ifdef MADV_HUGEPAGE
  if (fresh.nbytes() < least_in_huge_pages) {
    return;
  }
  constexpr std::uintptr_t page = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(fresh.const_data_ptr());
  const auto first = (begin + page - 1) / page * page;
  static_cast<void>(::madvise(reinterpret_cast<void*>(first),
                              (begin + fresh.nbytes() - first) / page * page, MADV_HUGEPAGE));
#else
  static_cast<void>(fresh);
#endif
}

/// An uninitialised CPU tensor, a large one in huge pages where the system has them.
inline at::Tensor host_empty(at::IntArrayRef sizes, at::ScalarType type,
                             std::optional<at::MemoryFormat> format = std::nullopt) {
  at::Tensor out(at::detail::empty_cpu(sizes, type, /*pin_memory=*/false, format));
  hint_huge_pages(out);
  return out;
}

}  // namespace tutti::detail
