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

#if TUTTI_BODIES
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#endif

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

namespace tutti::train {

TUTTI_INLINE Batch Transfer::operator()(const Batch& host) {
  if (!device_.is_cuda()) {
    return host.to(device_);
  }
  const c10::impl::VirtualGuardImpl streams(device_.type());
  const c10::Stream current = streams.getStream(device_);
  if (!stream_) {
    stream_ = streams.getStreamFromGlobalPool(device_);
  }
  // All work on the last batch has been given to the stream by now, and none on this one.
  std::optional<c10::Event>& used = slots_[turn_].used;
  used.emplace(device_.type()).record(current);
  turn_ = (turn_ + 1) % slots_.size();
  Slot& slot = slots_[turn_];
  Batch out = host;
  {
    const c10::StreamGuard aside(*stream_);
    if (slot.used) {
      slot.used->block(*stream_);
    }
    copy(slot, out, current);
  }
  c10::Event arrived(device_.type());
  arrived.record(*stream_);
  arrived.block(current);
  return out.to(device_, /*non_blocking=*/true);  // what is of another kind
}

// Strided tensors of the host that autograd need not follow.
TUTTI_INLINE bool Transfer::copies(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         !tensor.is_quantized() && !(tensor.requires_grad() && at::GradMode::is_enabled());
}

TUTTI_INLINE void Transfer::copy(Slot& slot, Batch& batch, const c10::Stream& current) const {
  std::size_t place = 0;
  slot.memory.resize(batch.size());
  for (auto& [name, tensor] : batch) {
    at::Tensor& memory = slot.memory[place++];
    if (!copies(tensor)) {
      memory.reset();
      continue;
    }
    const bool fits = memory.defined() && memory.storage().use_count() == 1 &&
                      memory.scalar_type() == tensor.scalar_type() &&
                      memory.sizes() == tensor.sizes() && memory.strides() == tensor.strides();
    if (!fits) {
      memory.reset();
      memory = at::empty_like(tensor, tensor.options().device(device_).pinned_memory(false));
      memory.record_stream(current);
    }
    memory.copy_(tensor, /*non_blocking=*/true);
    tensor = memory.detach();
  }
}

}  // namespace tutti::train

#endif
