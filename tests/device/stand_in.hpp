// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// A GPU for machines without one: a library that takes the place of CUDA's runtime, driver and
// NVRTC under LibTorch's own CUDA code, so that its allocator, streams, events, graphs, generators
// and autocast are the real ones. Link it before LibTorch, or LD_PRELOAD it.
//
// Operators are the CPU's. The device is strict where a GPU is: its memory cannot be read or
// written but by its own work (whoever tries dies), a stream does its work as late as CUDA allows,
// pinned memory is read when the copy's turn comes, operators take no tensors of two devices but
// numbers, and what must not be recorded ends a recording.
namespace stand_in {

/// Whether the device is the stand-in; false: it is a GPU (gpu.cpp).
bool is_there();

/// Bytes that the device has from now on, for all that LibTorch's allocator reserves.
void limit_memory(std::size_t bytes);

/// Bytes that LibTorch's allocator has reserved.
std::size_t memory_in_use();

/// Takes the limit back when it goes out of scope.
struct MemoryLimit {
  explicit MemoryLimit(std::size_t bytes) { limit_memory(bytes); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit();
};

}  // namespace stand_in
