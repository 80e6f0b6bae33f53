// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/microbatching.hpp>

namespace tutti::train {

TUTTI_INLINE bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  const std::string_view text = error.what();
  for (const std::string_view known :
       {"CUDA out of memory", "CUDA error: out of memory", "DefaultCPUAllocator:",
        "CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous"}) {
    if (text.find(known) != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

TUTTI_INLINE void release_memory(c10::Device device) {
  if (device.is_cpu()) {
    cpu::empty_cache();
  } else {
    ::tutti::detail::release_cached_memory(device);
  }
}

TUTTI_INLINE std::int64_t smaller_microbatch(std::int64_t size, const State& state,
                                             std::string_view what) {
  TUTTI_CHECK(size > 1, "the memory of ", state.device.str(),
              " is too small for a single example, ", what,
              "; take a smaller model or smaller inputs");
  const std::int64_t half = size / 2;
  if (state.rank == 0) {
    TORCH_WARN("out of memory with ", size, " examples at once, ", what, "; trying ", half);
  }
  return half;
}

TUTTI_INLINE bool ThrashWatch::operator()(const State& state) {
  if (!::tutti::detail::allocators_tell || state.device.is_cpu()) {
    return false;
  }
  const std::int64_t retries = ::tutti::detail::allocator_stats(state.device).num_alloc_retries;
  const bool calm = all_agree(retries == seen_, *state.communicator);
  seen_ = retries;
  in_a_row_ = calm ? 0 : in_a_row_ + 1;
  if (in_a_row_ < 2) {
    return false;
  }
  in_a_row_ = 0;
  return true;
}

}  // namespace tutti::train
