// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

namespace detail {

inline std::int64_t cuda_devices() {
  return at::hasCUDA() ? at::detail::getCUDAHooks().getNumGPUs() : 0;
}

inline at::Generator cuda_generator(std::int64_t device) {
  return at::globalContext().defaultGenerator(
      at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

}  // namespace detail

/// Saves the state of this process's default generators: the CPU's, and one for each CUDA device
/// that LibTorch sees (none without CUDA).
///
/// Generators of policies are not among them: each is saved with its policy.
void save_rng(Archive& archive);

/// Restores what save_rng() saved.
///
/// Whatever draws between this and the first new batch shifts the numbers, so call it last.
/// Returns, in words, the CUDA states that were left out because this machine lacks the device or
/// its LibTorch keeps states of another size; empty when all were restored. Throws c10::Error,
/// before anything is changed, when the CPU's state is missing or no state of this LibTorch's
/// generator.
std::vector<std::string> load_rng(const Archive& archive);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/rng_state.inl.hpp>
#endif
