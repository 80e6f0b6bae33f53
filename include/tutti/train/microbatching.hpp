// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/device_memory.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/train/cpu_memory.hpp>

/// Finding by trial how many examples fit into a device's memory.
namespace tutti::train {

/// Thrown on every rank, once all have left the microbatches, when one of them ran out of memory.
struct DoesNotFit final : std::exception {
  [[nodiscard]] const char* what() const noexcept override {
    return "tutti: a microbatch does not fit into the memory of the device";
  }
};

/// Whether an exception says that a device, or the host, has no memory left.
bool is_out_of_memory(const std::exception& error);

/// Runs `work`. Returns whether it ended without running out of memory; the exception is gone by
/// then, which would keep the memory of the tensors it left behind.
/// Throws what else it throws; an error of CUDA with the advice to set the size by hand.
template <class F>
bool fits(F&& work) {
  try {
    work();
    return true;
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) {
      const std::string text = error.what_without_backtrace();
      TUTTI_CHECK(text.find("CUDA") == std::string::npos && text.find("cuDNN") == std::string::npos,
                  text,
                  "\nThis is no plain lack of memory, so no automatic microbatch size can mend it; "
                  "set device_train_microbatch_size to a number.");
      throw;
    }
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) {
      throw;
    }
  }
  return false;
}

/// Gives back what the allocator of `device` keeps and no tensor uses.
void release_memory(c10::Device device);

/// Whether all ranks say yes; a collective.
inline bool all_agree(bool yes, dist::Communicator& world) {
  return world.size() == 1 ? yes
                           : world.all_reduce_value(std::int64_t{yes}, dist::ReduceOp::minimum) > 0;
}

/// Half of a size that did not fit. Throws c10::Error when that was a single example.
std::int64_t smaller_microbatch(std::int64_t size, const State& state, std::string_view what);

/// Notices an allocator that only finds room by giving back what it holds, again and again, which
/// costs more than smaller microbatches.
class ThrashWatch {
 public:
  /// Call after every batch, on all ranks. Returns whether two batches in a row went so.
  bool operator()(const State& state);

 private:
  std::int64_t seen_ = 0;
  int in_a_row_ = 0;
};

}  // namespace tutti::train

#if TUTTI_BODIES

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

#endif
