// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/transfer.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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
