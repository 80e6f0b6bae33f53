// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/detail/cuda_kernel.hpp>
#include <tutti/fused/detail/tables.hpp>

/// Fused passes on CUDA devices.
namespace tutti::fused::detail {

/// Whether this program can run fused passes on CUDA devices.
inline constexpr bool has_kernels = ::tutti::detail::has_cuda_kernels;

/// The kernel of a source for an output of this type and memory format.
inline ::tutti::detail::CudaKernel kernel_for(std::string_view source, at::ScalarType type,
                                              bool channels_last) {
  const char* out = type == at::kBFloat16 ? "BFloat16" : type == at::kHalf ? "Half" : "float";
  return {.text = source,
          .name = "tutti_fused_pass",
          .macros = {std::string("TUTTI_OUT=") + out,
                     std::string("TUTTI_LAST=") + (channels_last ? "1" : "0")}};
}

/// Runs the kernel on the current stream of the images' device; does not wait for it.
///
/// images: the raw bytes, on a CUDA device. frame: the batch after all stages. out: on the same
/// device, contiguous in either memory format, with at least one number.
/// Throws c10::Error when the kernel cannot be made or started.
inline void run_kernel(std::string_view source, const Tables& tables, const at::Tensor& images,
                       const Frame& frame, const at::Tensor& out) {
  const bool channels_last = !out.is_contiguous();
  const auto& numbers = tables.numbers();
  const at::Tensor host(at::detail::empty_cpu({std::ssize(numbers)}, at::kInt,
                                              /*pin_memory=*/true, std::nullopt));
  std::memcpy(host.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(numbers[0]));
  const at::Tensor data = host.to(images.device(), /*non_blocking=*/true);
  KernelBatch batch(images, frame);
  batch.data = data.const_data_ptr<std::int32_t>();
  void* to = out.mutable_data_ptr();
  void* arguments[] = {&batch, &to};
  const Launch how(frame, channels_last);
  ::tutti::detail::launch_kernel(kernel_for(source, out.scalar_type(), channels_last),
                                 {.grid = how.grid, .block = how.block}, images.device(),
                                 arguments);
}

}  // namespace tutti::fused::detail
