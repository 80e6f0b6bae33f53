// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/host_empty.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/data/detail/pinned.hpp>
#include <tutti/data/detail/thrown.hpp>
#include <tutti/data/transforms.hpp>

namespace tutti::data::detail {

// What becomes of each byte, by channel; empty: it stays a byte.
using ByteValues = std::vector<std::array<float, 256>>;

// The images of a batch on their way into it, one epoch's.
struct ImageBatches {
  Transforms transforms;
  std::uint64_t seed;
  std::int64_t before;  // images of the epochs before
  std::shared_ptr<const ByteValues> table;
  bool pins;  // what it makes is in page-locked memory

  // images: uint8 [n, C, H, W]. index: int64 [n], which images of the data set these are.
  // Returns [n, C, H', W'], floats unless the table is empty.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& images, const at::Tensor& index) const {
    if (transforms.empty() && table->empty()) {
      return images;
    }
    std::vector<at::Tensor> done(static_cast<std::size_t>(images.size(0)));
    const auto* example = index.const_data_ptr<std::int64_t>();
    ::tutti::detail::parallel_each(images.size(0), [&](std::int64_t i) {
      try {
        done[static_cast<std::size_t>(i)] =
            transforms(images.select(0, i), static_cast<std::uint64_t>(before + example[i]), seed);
      } catch (...) {
        throw_over("ImageLoader: image " + std::to_string(example[i]) +
                   " of the data set cannot be transformed: ");
      }
    });
    return stack(done, images.size(1));
  }

 private:
  [[nodiscard]] at::Tensor stack(const std::vector<at::Tensor>& images,
                                 std::int64_t channels) const {
    const at::Tensor& first = images.front();
    for (const at::Tensor& image : images) {
      TUTTI_CHECK(image.sizes() == first.sizes() && image.scalar_type() == at::kByte &&
                      image.dim() == 3 && image.size(0) == channels,
                  "ImageLoader: after its transforms an image is ", image.scalar_type(),
                  image.sizes(), " and the batch's first ", first.scalar_type(), first.sizes(),
                  "; expected uint8 with ", channels, " channels and one size for all");
    }
    std::vector<std::int64_t> shape = first.sizes().vec();
    shape.insert(shape.begin(), std::ssize(images));
    const at::ScalarType type = table->empty() ? at::kByte : at::kFloat;
    at::Tensor out = pins ? pinned_empty(shape, type) : ::tutti::detail::host_empty(shape, type);
    ::tutti::detail::parallel_each(std::ssize(images), [&](std::int64_t i) {
      const at::Tensor image = images[static_cast<std::size_t>(i)].contiguous();
      if (table->empty()) {
        out.select(0, i).copy_(image);
      } else {
        look_up(image, out.select(0, i));
      }
    });
    return out;
  }

  void look_up(const at::Tensor& image, const at::Tensor& out) const {
    const auto* from = image.const_data_ptr<std::uint8_t>();
    auto* to = out.mutable_data_ptr<float>();
    const std::int64_t pixels = image.size(1) * image.size(2);
    for (const auto& channel : *table) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        *to++ = channel[*from++];
      }
    }
  }
};

}  // namespace tutti::data::detail
