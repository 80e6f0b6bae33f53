// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>

#include <tutti/config.hpp>
#include <tutti/nn/activation_checkpointing.hpp>
#include <tutti/nn/detail/frozen.hpp>

#include <torch/nn/modules/container/sequential.h>

/// A Sequential that can stand inside another one.
namespace tutti::nn {

/// torch::nn::Sequential of modules that map a tensor to a tensor; unlike it, it nests, and the
/// backward pass can compute it again.
class SequentialImpl : public torch::nn::SequentialImpl, public Recomputable {
 public:
  ~SequentialImpl() override;
  using torch::nn::SequentialImpl::SequentialImpl;

  /// Chains the modules.
  at::Tensor forward(const at::Tensor& x) {
    return recomputed(
        x, [this](const at::Tensor& input) { return torch::nn::SequentialImpl::forward(input); });
  }

  /// A deep copy that nests as well, with the children's names, in the same mode,
  /// with the same parameters frozen.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<SequentialImpl>();
    copy->set_activation_checkpointing(activation_checkpointing());
    copy->train(is_training());  // itself alone: it has no children yet
    const auto names = named_children().keys();
    std::size_t position = 0;
    for (const torch::nn::AnyModule& module : *this) {
      copy->push_back(names[position], module.clone(device));
      ++position;
    }
    detail::keep_frozen(*this, *copy);
    return copy;
  }
};

/// Holder of a SequentialImpl, constructed as torch::nn::Sequential is.
class Sequential : public torch::nn::ModuleHolder<SequentialImpl> {
 public:
  using torch::nn::ModuleHolder<SequentialImpl>::ModuleHolder;
  using Impl = SequentialImpl;

  Sequential() = default;

  /// `Sequential({{"conv", Conv2d(3, 8, 3)}, {"norm", BatchNorm2d(8)}})`.
  Sequential(std::initializer_list<torch::nn::NamedAnyModule> named_modules)
      : ModuleHolder(std::make_shared<SequentialImpl>(named_modules)) {}
};

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE SequentialImpl::~SequentialImpl() = default;

}  // namespace tutti::nn

#endif
