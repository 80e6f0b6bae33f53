// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

#if TUTTI_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#if TUTTI_WITH_CUDA && TUTTI_BODIES
#include <map>
#include <mutex>
#include <tuple>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <tutti/core/detail/nvrtc.hpp>
#endif

/// Kernels whose text the program has, run on a CUDA device.
namespace tutti::detail {

#if TUTTI_WITH_CUDA && CUDART_VERSION >= 12080  // older ones load no kernels at run time
inline constexpr bool has_cuda_kernels = true;
#else
inline constexpr bool has_cuda_kernels = false;
#endif

/// A kernel: its text, its name there, and what is defined for the text.
struct CudaKernel {
  std::string_view text;            ///< lives as long as the program
  const char* name = nullptr;       ///< of the function, extern "C"
  std::vector<std::string> macros;  ///< "NAME=TEXT" each
};

/// How many threads run, in blocks and in a grid of blocks: x, y, z.
struct CudaLaunch {
  std::array<unsigned, 3> grid{1, 1, 1};
  std::array<unsigned, 3> block{1, 1, 1};
};

/// Starts the kernel on the current stream of the device; does not wait for it.
///
/// It is compiled once for a device: in the program, and for all programs that find the same home.
/// arguments: addresses of the function's own. Throws c10::Error when it cannot be compiled, loaded
/// or started, and where has_cuda_kernels is false.
void launch_kernel(const CudaKernel& kernel, const CudaLaunch& how, c10::Device device,
                   void** arguments);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

#if TUTTI_WITH_CUDA && CUDART_VERSION >= 12080

TUTTI_INLINE cudaKernel_t cuda_function(const CudaKernel& kernel, c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<std::tuple<const char*, std::string, c10::DeviceIndex>, cudaKernel_t> kernels;
  const std::scoped_lock lock(mutex);
  cudaKernel_t& out = kernels[{kernel.text.data(), joined(kernel.macros), device}];
  if (out == nullptr) {
    int major = 0;
    int minor = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    const std::string architecture = architecture_for(10 * major + minor, nvrtc_architectures());
    const std::string code = compiled(kernel.text, kernel.name,
                                      kernel_options(architecture, kernel.macros), kernel_folder());
    cudaLibrary_t library = nullptr;  // is never unloaded: its kernels are used until the end
    C10_CUDA_CHECK(
        cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    C10_CUDA_CHECK(cudaLibraryGetKernel(&out, library, kernel.name));
  }
  return out;
}

TUTTI_INLINE void launch_kernel(const CudaKernel& kernel, const CudaLaunch& how, c10::Device device,
                                void** arguments) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaKernel_t function = cuda_function(kernel, device.index());
  const auto [x, y, z] = how.grid;
  const auto [threads_x, threads_y, threads_z] = how.block;
  C10_CUDA_CHECK(cudaLaunchKernel(function, {x, y, z}, {threads_x, threads_y, threads_z}, arguments,
                                  0, c10::cuda::getCurrentCUDAStream()));
}

#else

TUTTI_INLINE void launch_kernel(const CudaKernel& kernel, const CudaLaunch&, c10::Device device,
                                void**) {
  TUTTI_CHECK(false, kernel.name, " on ", device,
              ": this program was built without CUDA 12.8 or newer (TUTTI_WITH_CUDA)");
}

#endif

}  // namespace tutti::detail

#endif
