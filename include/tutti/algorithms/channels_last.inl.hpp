// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/channels_last.hpp>

namespace tutti::functional {

TUTTI_INLINE at::Tensor channels_last(const at::Tensor& x) {
  if (x.dim() != 4 && x.dim() != 5) {
    return x;
  }
  const auto format =
      x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  return x.to(x.scalar_type(), /*non_blocking=*/false, /*copy=*/false, format);
}

TUTTI_INLINE std::int64_t apply_channels_last(torch::nn::Module& model) {
  std::int64_t count = 0;
  const auto convert = [&count](at::Tensor tensor) {
    if (tensor.dim() != 4 && tensor.dim() != 5) {
      return;
    }
    ++count;
    if (const at::Tensor converted = channels_last(tensor.detach());
        converted.strides() != tensor.strides()) {
      tensor.set_data(converted);
    }
  };
  for (const at::Tensor& parameter : model.parameters()) {
    convert(parameter);
  }
  for (const at::Tensor& buffer : model.buffers()) {
    convert(buffer);
  }
  return count;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void ChannelsLast::apply(Init, State& state) const {
  if (functional::apply_channels_last(*state.model) == 0) {
    surgery::report_none(if_none, "parameter of 4 or 5 dimensions", name);
  }
}

TUTTI_INLINE void ChannelsLast::convert(Batch& batch) const {
  at::Tensor& x = detail::inputs_of(batch, input_key);
  x = functional::channels_last(x);
}

}  // namespace tutti
