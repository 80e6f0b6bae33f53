#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <tutti/fused/detail/tables.hpp>

#if TUTTI_WITH_CUDA
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <tutti/fused/detail/nvrtc.hpp>
#endif

/// Fused passes on CUDA devices.
namespace tutti::fused::detail {

#if TUTTI_WITH_CUDA && CUDART_VERSION >= 12080  // older ones load no kernels at run time

/// Whether this program can run fused passes on CUDA devices.
inline constexpr bool has_kernels = true;

/// The kernel of a source for a device: made once in a program, and once for all programs that
/// find the same home.
///
/// source: lives as long as the program. Throws c10::Error when it cannot be compiled or loaded.
inline cudaKernel_t kernel_of(std::string_view source, const KernelOutput& output,
                              c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<std::tuple<const char*, KernelOutput, c10::DeviceIndex>, cudaKernel_t> kernels;
  const std::scoped_lock lock(mutex);
  cudaKernel_t& kernel = kernels[{source.data(), output, device}];
  if (kernel == nullptr) {
    int major = 0;
    int minor = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    const std::string code =
        compiled(source, output, architecture_for(10 * major + minor, nvrtc_architectures()),
                 kernel_folder());
    cudaLibrary_t library = nullptr;  // is never unloaded: its kernels are used until the end
    C10_CUDA_CHECK(
        cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    C10_CUDA_CHECK(cudaLibraryGetKernel(&kernel, library, "tutti_fused_pass"));
  }
  return kernel;
}

/// Runs the kernel on the current stream of the images' device; does not wait for it.
///
/// images: the raw bytes, on a CUDA device. frame: the batch after all stages. out: on the same
/// device, contiguous in either memory format, with at least one number.
/// Throws c10::Error when the kernel cannot be made or started.
inline void run_kernel(std::string_view source, const Tables& tables, const at::Tensor& images,
                       const Frame& frame, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(images.device());
  const KernelOutput output{out.scalar_type(), !out.is_contiguous()};
  const cudaKernel_t kernel = kernel_of(source, output, images.device().index());
  const auto& numbers = tables.numbers();
  const at::Tensor host(at::detail::empty_cpu({std::ssize(numbers)}, at::kInt,
                                              /*pin_memory=*/true, std::nullopt));
  std::memcpy(host.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(numbers[0]));
  const at::Tensor data = host.to(images.device(), /*non_blocking=*/true);
  KernelBatch batch(images, frame);
  batch.data = data.const_data_ptr<std::int32_t>();
  void* to = out.mutable_data_ptr();
  void* arguments[] = {&batch, &to};
  const Launch launch(frame, output.channels_last);
  const auto [x, y, z] = launch.grid;
  const auto [threads_x, threads_y, threads_z] = launch.block;
  C10_CUDA_CHECK(cudaLaunchKernel(kernel, {x, y, z}, {threads_x, threads_y, threads_z}, arguments,
                                  0, c10::cuda::getCurrentCUDAStream()));
}

#else

inline constexpr bool has_kernels = false;
inline void run_kernel(std::string_view, const Tables&, const at::Tensor&, const Frame&,
                       const at::Tensor&) {}

#endif

}  // namespace tutti::fused::detail
