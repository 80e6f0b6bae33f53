// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/core/rng.hpp>
#include <tutti/data/detail/item_rng.hpp>

/// What a loader does to each image on its way into a batch.
namespace tutti::data {

/// One image in, one image out: uint8 [C, H, W] to uint8 [C, H', W']. Draws from `rng` alone, and
/// may run for several images at the same time.
using ImageTransform = std::function<at::Tensor(const at::Tensor& image, Rng& rng)>;

/// Image transforms in the order in which they are applied.
///
///     tutti::data::Transforms flips{{"flip", random_flip}};
///
/// Every transform has a stream of random numbers for each number that the image is given, so what
/// it draws depends neither on the other transforms nor on the number of threads.
class Transforms {
 public:
  struct Entry {
    std::string name;
    ImageTransform transform;
    Rng stream{};  ///< where its random numbers begin
  };

  Transforms() = default;
  Transforms(std::initializer_list<std::pair<std::string_view, ImageTransform>> entries) {
    for (const auto& [name, transform] : entries) {
      put(name, transform);
    }
  }

  /// Appends a transform, or replaces the one of that name where it stands.
  ///
  /// stream: of its draws; without one that of the name.
  void put(std::string_view name, ImageTransform transform, const Rng& stream) {
    const auto found = find(name);
    if (found == entries_.end()) {
      entries_.push_back({std::string(name), std::move(transform), stream});
    } else {
      found->transform = std::move(transform);
      found->stream = stream;
    }
  }
  void put(std::string_view name, ImageTransform transform) {
    put(name, std::move(transform), Rng::for_policy(0, name));
  }

  /// Takes the transform of that name out, if there is one.
  void remove(std::string_view name) {
    const auto found = find(name);
    if (found != entries_.end()) {
      entries_.erase(found);
    }
  }

  /// The image after all transforms.
  ///
  /// number: of this use of this image, such as epoch times size of the data set plus index: the
  /// same number gives the same draws. seed: added to those of the transforms.
  [[nodiscard]] at::Tensor operator()(at::Tensor image, std::uint64_t number,
                                      std::uint64_t seed = 0) const {
    for (const Entry& entry : entries_) {
      Rng rng = detail::item_rng(entry.stream.seed() + seed, entry.stream.stream(), number);
      image = entry.transform(image, rng);
    }
    return image;
  }

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  [[nodiscard]] std::vector<Entry>::iterator find(std::string_view name) {
    return std::find_if(entries_.begin(), entries_.end(),
                        [&](const Entry& entry) { return entry.name == name; });
  }

  std::vector<Entry> entries_;
};

}  // namespace tutti::data
