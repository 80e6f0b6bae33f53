// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>

/// Batches on their way to the device.
namespace tutti::train {

/// Copies batches to a GPU on a stream of their own, so that one is copied while those before it
/// are computed. The host never waits for the device, and the device has memory for two batches,
/// used in turn: the third is copied once the work on the first is done. A tensor that somebody
/// keeps is left alone, another takes its place.
///
/// Copies of pinned memory run beside the host as well (`pin_memory` of the loaders). On a CPU and
/// for tensors that are on the device nothing happens.
/// Source: PyTorch, "CUDA semantics", sections "CUDA streams" and "Use pinned memory buffers".
class Transfer {
 public:
  /// device: of the model.
  explicit Transfer(at::Device device) : device_(device) {}

  /// The batch on the device; the stream that is current waits for it. Work on it must be given to
  /// that stream before the next call.
  /// Throws c10::Error when there is no memory left for it.
  Batch operator()(const Batch& host);

  /// Gives the memory back. Copies that run are finished, and what was returned stays whole.
  void forget() { slots_ = {}; }

  /// That of the copies; none before the first one to a GPU.
  [[nodiscard]] std::optional<c10::Stream> stream() const { return stream_; }

 private:
  struct Slot {
    std::vector<at::Tensor> memory;  // by place in the batch; undefined: was not copied
    std::optional<c10::Event> used;  // the work on what was there
  };

  [[nodiscard]] bool copies(const at::Tensor& tensor) const;
  void copy(Slot& slot, Batch& batch, const c10::Stream& current) const;

  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::array<Slot, 2> slots_;
  std::size_t turn_ = 0;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/transfer.inl.hpp>
#endif
