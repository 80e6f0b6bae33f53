// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/container/any.h>

/// What a surgery policy returns.
namespace tutti::surgery {

/// `M` can stand in everywhere, a torch::nn::Sequential included: a TensorModule with one
/// forward().
template <class M>
concept StandIn = nn::TensorModule<M> && requires { &M::forward; };

/// A module that takes a layer's place, or none.
///
/// Made from a shared_ptr or a holder of any module that maps a tensor to a tensor, so that a
/// policy may return different modules for different layers. A torch::nn::Sequential, whose forward
/// is a template, is none of these; tutti::nn::Sequential is.
class Replacement {
 public:
  Replacement() = default;
  Replacement(std::nullptr_t) {}

  template <StandIn M>
  Replacement(std::shared_ptr<M> module) {
    if (module != nullptr) {
      any_ = torch::nn::AnyModule(module);
      slot_ = nn::Slot(std::move(module));
    }
  }

  template <StandIn M>
  Replacement(const torch::nn::ModuleHolder<M>& holder)
      : Replacement(holder.is_empty() ? nullptr : holder.ptr()) {}

  /// Keeps the layer. why: the reason as a word or two, for reports: "stride 1".
  static Replacement keep(std::string why) {
    Replacement none;
    none.why_ = std::move(why);
    return none;
  }

  /// Why the layer is kept; empty where nothing was said.
  [[nodiscard]] const std::string& why() const { return why_; }

  /// The module; null keeps the layer.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return slot_.module(); }

  /// The module as a layer's slot holds it.
  [[nodiscard]] const nn::Slot& slot() const { return slot_; }

  /// The module as a torch::nn::Sequential holds it.
  [[nodiscard]] const torch::nn::AnyModule& any() const { return any_; }

 private:
  nn::Slot slot_;
  torch::nn::AnyModule any_;
  std::string why_;
};

}  // namespace tutti::surgery
