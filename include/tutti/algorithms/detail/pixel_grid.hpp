// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>

/// Rows and columns of images by index: what deleting rows, and resizing to the nearest pixel, are.
namespace tutti::detail {

using Indices = std::vector<std::int64_t>;

at::Tensor as_tensor(const Indices& indices, at::Device device);

// to[p, i, j] = from[p, rows[i], columns[j]], pixels of `Bytes` bytes, or of `bytes` when that is
// 0.
template <std::size_t Bytes>
void copy_grid(const std::byte* from, std::byte* to, std::int64_t planes, std::int64_t height,
               std::int64_t width, std::size_t bytes, const Indices& rows, const Indices& columns) {
  const std::size_t pixel = Bytes == 0 ? bytes : Bytes;
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    for (const std::int64_t row : rows) {
      const std::byte* line =
          from + static_cast<std::size_t>((plane * height + row) * width) * pixel;
      for (const std::int64_t column : columns) {
        std::memcpy(to, line + static_cast<std::size_t>(column) * pixel,
                    Bytes == 0 ? bytes : Bytes);
        to += pixel;
      }
    }
  }
}

// x's memory on the CPU holds what x is, and nothing has to be told of what is done with it.
bool is_plain_memory(const at::Tensor& x);

// x[..., rows, :][..., columns] of x [..., H, W], in one pass on the CPU, in x's memory format.
at::Tensor take_grid(const at::Tensor& x, const Indices& rows, const Indices& columns);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE at::Tensor as_tensor(const Indices& indices, at::Device device) {
  at::Tensor out(
      at::detail::empty_cpu({std::ssize(indices)}, at::kLong, /*pin_memory=*/false, std::nullopt));
  std::memcpy(out.mutable_data_ptr(), indices.data(), indices.size() * sizeof(std::int64_t));
  return out.to(device, /*non_blocking=*/true);
}

TUTTI_INLINE bool is_plain_memory(const at::Tensor& x) {
  return x.is_cpu() && !x.requires_grad() && !x.is_neg() && !x.is_conj() && !x._is_zerotensor() &&
         !x._fw_grad(0).defined();
}

TUTTI_INLINE at::Tensor take_grid(const at::Tensor& x, const Indices& rows,
                                  const Indices& columns) {
  const bool last =
      x.dim() == 4 && !x.is_contiguous() && x.is_contiguous(at::MemoryFormat::ChannelsLast);
  if (!is_plain_memory(x)) {
    return x.index_select(-2, as_tensor(rows, x.device()))
        .index_select(-1, as_tensor(columns, x.device()));
  }
  const at::Tensor plain = last ? x : x.contiguous();
  std::vector<std::int64_t> shape = x.sizes().vec();
  const std::int64_t height = std::exchange(shape.end()[-2], std::ssize(rows));
  const std::int64_t width = std::exchange(shape.end()[-1], std::ssize(columns));
  at::Tensor out(
      at::detail::empty_cpu(shape, x.scalar_type(), /*pin_memory=*/false,
                            last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
  if (out.numel() == 0) {
    return out;
  }
  const auto element = static_cast<std::size_t>(x.element_size());
  const std::size_t bytes = element * (last ? static_cast<std::size_t>(x.size(1)) : 1);
  const std::int64_t planes = x.numel() * static_cast<std::int64_t>(element) /
                              (height * width * static_cast<std::int64_t>(bytes));
  const auto copy = [&](auto size) {
    copy_grid<decltype(size)::value>(static_cast<const std::byte*>(plain.const_data_ptr()),
                                     static_cast<std::byte*>(out.mutable_data_ptr()), planes,
                                     height, width, bytes, rows, columns);
  };
  switch (bytes) {
    case 1:
      copy(std::integral_constant<std::size_t, 1>{});
      break;
    case 2:
      copy(std::integral_constant<std::size_t, 2>{});
      break;
    case 4:
      copy(std::integral_constant<std::size_t, 4>{});
      break;
    case 8:
      copy(std::integral_constant<std::size_t, 8>{});
      break;
    default:
      copy(std::integral_constant<std::size_t, 0>{});
  }
  return out;
}

}  // namespace tutti::detail

#endif
