// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/image_geometry.hpp>

/// Image transforms one after the other, and images to floats.
namespace tutti::data {

/// `F` changes an image: `f(image, rng)` or `f(image)` is one.
template <class F>
concept ChangesImages = requires(const F& f, const at::Tensor& image, Rng& rng) {
  { std::invoke(f, image, rng) } -> std::convertible_to<at::Tensor>;
} || requires(const F& f, const at::Tensor& image) {
  { std::invoke(f, image) } -> std::convertible_to<at::Tensor>;
};

namespace detail {

template <class F>
inline constexpr bool changes_images = ChangesImages<F>;

}  // namespace detail

/// Refuses what Compose cannot give an image.
template <class F>
struct TransformCheck {
  static_assert(detail::changes_images<F>,
                "tutti: this is no transform of images; give it at::Tensor operator()(const "
                "at::Tensor& image, tutti::Rng&) const, or (const at::Tensor& image) const.");
};

/// Several transforms as one, of images and of examples with one.
///
///     const tutti::data::Compose augment{tutti::data::RandomResizedCrop{.size = 224},
///                                        tutti::data::RandomHorizontalFlip{},
///                                        tutti::data::Normalize{.mean = mean, .std = std}};
///     auto train = examples | tutti::views::shuffle(17) | tutti::views::map(augment, 4) |
///                  tutti::views::batch(128);
///     tutti::DataLoader loader{photos, {.transform = augment}};
///
/// All draw from one stream, in their order. An example is a Batch, whose inputs() are the image,
/// or a pair that begins with it. Source: torchvision, `transforms.v2.Compose`.
template <class... Fs>
class Compose {
  static_assert(((sizeof(TransformCheck<Fs>) > 0) && ...));

 public:
  explicit Compose(Fs... transforms) : transforms_(std::move(transforms)...) {}

  at::Tensor operator()(at::Tensor image, Rng& rng) const {
    const auto one = [&](const auto& f) {
      if constexpr (std::invocable<decltype(f), const at::Tensor&, Rng&>) {
        image = std::invoke(f, std::as_const(image), rng);
      } else {
        image = std::invoke(f, std::as_const(image));
      }
    };
    std::apply([&](const auto&... f) { (one(f), ...); }, transforms_);
    return image;
  }

  template <class Label>
  std::pair<at::Tensor, Label> operator()(std::pair<at::Tensor, Label> example, Rng& rng) const {
    example.first = (*this)(std::move(example.first), rng);
    return example;
  }

  Batch operator()(Batch example, Rng& rng) const {
    example.inputs() = (*this)(example.inputs(), rng);
    return example;
  }

 private:
  std::tuple<Fs...> transforms_;
};

/// Images as floats, less the mean, divided by the standard deviation of their channels:
/// normalize() as a transform, for pipelines of views, DataLoaderOptions::transform and loops of
/// one's own.
///
/// ImageLoader does it by its options, and a recipe by fused::Normalize, together with its
/// algorithms. Behind it comes what works on normalised floats, such as RandomErasing with random
/// values.
struct Normalize {
  std::vector<double> mean{};  ///< of the channels, of values from 0 to 1; empty: 0
  std::vector<double> std{};   ///< likewise; > 0; empty: 1

  at::Tensor operator()(const at::Tensor& images) const { return normalize(images, mean, std); }
  friend bool operator==(const Normalize&, const Normalize&) = default;
};

}  // namespace tutti::data
