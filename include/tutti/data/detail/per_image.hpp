// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/framing.hpp>

namespace tutti::data::detail {

// f(image, rng) of an image [C, H, W], or of each of [N, C, H, W], several at a time, with random
// numbers of its own. size: of what f gives; height 0: that of the images.
template <class F>
at::Tensor per_image(const at::Tensor& images, Rng& rng, const ImageSize& size, const F& f) {
  if (images.dim() == 3) {
    return f(images, rng);
  }
  std::vector<std::int64_t> shape = images.sizes().vec();
  if (size.height != 0) {
    shape[2] = size.height;
    shape[3] = size.square().width;
  }
  at::Tensor out = images.new_empty(shape);
  if (rng.replays()) {
    for (std::int64_t i = 0; i < images.size(0); ++i) {
      out.select(0, i).copy_(f(images.select(0, i), rng));
    }
    return out;
  }
  const auto seed = static_cast<std::uint64_t>(rng.integer(0, std::int64_t{1} << 62));
  ::tutti::detail::parallel_each(images.size(0), [&](std::int64_t i) {
    Rng own(seed, static_cast<std::uint64_t>(i));
    out.select(0, i).copy_(f(images.select(0, i), own));
  });
  return out;
}

}  // namespace tutti::data::detail
