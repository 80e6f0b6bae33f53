// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/rng_state.hpp>

namespace tutti::checkpoint::detail {

TUTTI_INLINE at::Tensor generator_state(const at::Generator& generator) {
  at::Generator shared =
      generator;  // a handle: locking and reading change nothing but need it mutable
  const std::lock_guard<std::mutex> lock(shared.mutex());
  return shared.get_state().clone();
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE void save_rng(Archive& archive) {
  archive.put("cpu", detail::generator_state(at::detail::getDefaultCPUGenerator()));
  for (std::int64_t i = 0; i < detail::cuda_devices(); ++i) {
    archive.put("cuda/" + std::to_string(i), detail::generator_state(detail::cuda_generator(i)));
  }
}

TUTTI_INLINE std::vector<std::string> load_rng(const Archive& archive) {
  const at::Tensor cpu = archive.tensor("cpu");
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor own = detail::generator_state(generator);
  TUTTI_CHECK(cpu.scalar_type() == at::kByte && cpu.sizes() == own.sizes(),
              "checkpoint: the CPU generator's state is ", cpu.scalar_type(), ' ', cpu.sizes(),
              ", expected ", own.scalar_type(), ' ', own.sizes(),
              "; it was saved by another version of LibTorch");
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(cpu.clone());
  }
  std::vector<std::string> left_out;
  if (!archive.contains("cuda")) {
    return left_out;
  }
  const Archive& saved = archive.child("cuda");
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(saved.size()); ++i) {
    const std::string name = std::to_string(i);
    if (i >= detail::cuda_devices()) {
      left_out.push_back("the generator of cuda:" + name + ", a device that this machine lacks");
      continue;
    }
    at::Generator device = detail::cuda_generator(i);
    const at::Tensor state = saved.tensor(name);
    if (state.scalar_type() != at::kByte ||
        state.sizes() != detail::generator_state(device).sizes()) {
      left_out.push_back("the generator of cuda:" + name + ", saved in another format");
      continue;
    }
    const std::lock_guard<std::mutex> lock(device.mutex());
    device.set_state(state.clone());
  }
  return left_out;
}

}  // namespace tutti::checkpoint
