// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <string>

/// What the CUDA driver says, without its headers and without linking it.
namespace tutti::detail {

/// The name of a CUDA device, "NVIDIA H200"; empty when there is no driver or no such device.
///
/// index: as LibTorch counts devices, which CUDA_VISIBLE_DEVICES decides.
inline std::string cuda_device_name(int index) {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return {};
  }
  // All of these return 0 when they succeed.
  auto* init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  auto* get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  auto* name = reinterpret_cast<int (*)(char*, int, int)>(::dlsym(driver, "cuDeviceGetName"));
  char text[256] = "";
  int device = 0;
  const bool known = init != nullptr && get != nullptr && name != nullptr && init(0) == 0 &&
                     get(&device, index) == 0 && name(text, sizeof text, device) == 0;
  return known ? text : "";  // the driver stays loaded: LibTorch uses it as well
}

}  // namespace tutti::detail
