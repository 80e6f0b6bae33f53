// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <torch/version.h>

// What LibTorch's allocator of a device tells; before 2.9 it had no common interface.
namespace tutti::detail {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
inline constexpr bool allocators_tell = true;
inline c10::CachingDeviceAllocator::DeviceStats allocator_stats(c10::Device device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}
inline void release_cached_memory(c10::Device device) {
  c10::getDeviceAllocator(device.type())->emptyCache();
}
#else
inline constexpr bool allocators_tell = false;
inline c10::CachingDeviceAllocator::DeviceStats allocator_stats(c10::Device) {
  return {};
}
inline void release_cached_memory(c10::Device) {}
#endif

}  // namespace tutti::detail
