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
#include <tutti/train/microbatching.inl.hpp>
#endif
