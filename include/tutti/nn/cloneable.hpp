// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include <torch/nn/cloneable.h>

#include <tutti/nn/detail/frozen.hpp>

/// The base of modules that have parameters of their own.
namespace tutti::nn {

/// torch::nn::Cloneable, whose copies keep which parameters are frozen; it forgets that of those
/// that reset() makes.
///
///     class ScaleImpl : public tutti::nn::Cloneable<ScaleImpl> { ... };
///
/// Source: LibTorch, `torch::nn::Cloneable`.
template <class Derived>
class Cloneable : public torch::nn::Cloneable<Derived> {
 public:
  using torch::nn::Cloneable<Derived>::Cloneable;

  /// A deep copy on `device`, by default on the original's, in the same mode, with the same
  /// parameters frozen. Throws c10::Error when reset() makes other parameters than there are.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    auto copy = torch::nn::Cloneable<Derived>::clone(device);
    detail::keep_frozen(*this, *copy);
    return copy;
  }
};

}  // namespace tutti::nn
