#pragma once

#include <cstddef>

// A device that says it is cuda:0, for programs that link no libtorch_cuda. It computes with the
// CPU's operators and is strict where a GPU is: its memory cannot be read or written but by them
// (whoever tries dies), they take no tensors of two devices but numbers, and none but its own
// generators.
namespace stand_in {

/// Bytes of the device's memory that tensors may have from now on; more throws
/// c10::OutOfMemoryError.
void limit_memory(std::size_t bytes);

/// Bytes of the device's memory that tensors have now.
std::size_t memory_in_use();

/// Takes the limit back when it goes out of scope.
struct MemoryLimit {
  explicit MemoryLimit(std::size_t bytes) { limit_memory(bytes); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit();
};

}  // namespace stand_in
