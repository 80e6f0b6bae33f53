#include "device/stand_in.hpp"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "support/catch.hpp"

// What the cases ask of the stand-in, where there is a GPU.

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

std::size_t whole_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return total;
}

// No case runs without a device. What is resumed has the same bits where kernels have.
const bool there = [] {
  if (c10::cuda::device_count() == 0) {
    std::puts("skipped: there is no CUDA device");
    std::fflush(stdout);
    std::_Exit(77);
  }
  at::globalContext().setDeterministicCuDNN(true);
  return true;
}();

}  // namespace

namespace stand_in {

bool is_there() {
  return false;
}

void limit_memory(std::size_t bytes) {
  allocator::setMemoryFraction(static_cast<double>(bytes) / static_cast<double>(whole_memory()),
                               c10::cuda::current_device());
}

std::size_t memory_in_use() {
  const auto stats = allocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::size_t>(stats.reserved_bytes[0].current);
}

MemoryLimit::~MemoryLimit() {
  limit_memory(whole_memory());
}

}  // namespace stand_in
