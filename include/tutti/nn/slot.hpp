// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/detail/frozen.hpp>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

/// The mechanism behind the replaceable layers.
///
/// A torch::nn module calls its children through typed members, so that exchanging a registered
/// child changes nothing. A replaceable layer is the torch::nn layer plus a slot: once it is
/// filled, the layer's forward is the forward of the module in the slot. What the old layer
/// computed is kept by a twin of it: a second object over the same tensors.
namespace tutti::nn {

/// `M` is a module that maps one tensor to one: `m.forward(x)` is a tensor.
template <class M>
concept TensorModule =
    std::derived_from<M, torch::nn::Module> && requires(M& module, const at::Tensor& x) {
      { module.forward(x) } -> std::same_as<at::Tensor>;
    };

/// Holds the module that stands in for a layer, and knows how to call it.
class Slot {
 public:
  Slot() = default;

  /// Takes `module`; its forward is what this slot calls. Null leaves the slot empty.
  template <TensorModule M>
  explicit Slot(std::shared_ptr<M> module)
      : module_(std::move(module)), call_([](torch::nn::Module& self, const at::Tensor& x) {
          return static_cast<M&>(self).forward(x);
        }) {}

  /// Something stands in.
  explicit operator bool() const noexcept { return module_ != nullptr; }

  /// The forward of what stands in; only for a filled slot.
  at::Tensor operator()(const at::Tensor& x) const { return call_(*module_, x); }

  /// What stands in; null for an empty slot.
  const std::shared_ptr<torch::nn::Module>& module() const noexcept { return module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  at::Tensor (*call_)(torch::nn::Module&, const at::Tensor&) = nullptr;
};

/// What every replaceable layer is, whatever its kind; found among a model's modules by
/// dynamic_cast. Who wants to watch a layer fills its slot for a while with a module that calls
/// what was there: the slot's former content or, for an empty slot, compute().
class Slotted {
 public:
  virtual ~Slotted() = default;

  /// Where what stands in goes; assigning an empty slot gives the layer back.
  virtual Slot& slot() noexcept = 0;

  /// What the layer computes itself, whatever its slot holds.
  virtual at::Tensor compute(const at::Tensor& x) = 0;
};

/// Throws the c10::Error of modules that surgery made or replaced: clone() rests on reset(), which
/// rebuilds the model as it was before.
[[noreturn]] inline void refuse_clone(const torch::nn::Module& module) {
  TUTTI_CHECK(false, module.name(), " is part of a surgery and cannot be cloned; clone the model ",
              "before its surgery and apply the same surgery to the copy, then load the state of ",
              "this one.");
}

/// The torch::nn layer `Base` with a slot: same constructors, options and parameter names.
///
/// tutti::nn::Conv2d and its like are holders of this. Any module of yours that maps a tensor to
/// a tensor can be made replaceable the same way. A class derived from it that computes something
/// else overrides compute() and twin(), and leaves forward() alone, so that it stays replaceable.
template <TensorModule Base>
class Replaceable : public Base, public Slotted {
 public:
  /// The torch::nn layer that this one is.
  using Plain = Base;

  using Base::Base;
  Replaceable()
    requires std::default_initializable<Base>
  = default;

  /// A replaceable layer over the tensors of `layer`: the same objects, not copies.
  explicit Replaceable(const Base& layer) : Base(layer) {}

  /// What stands in if something does; compute(x) otherwise.
  at::Tensor forward(const at::Tensor& x) { return slot_ ? slot_(x) : compute(x); }

  /// What this layer computes itself, whatever its slot holds.
  at::Tensor compute(const at::Tensor& x) override { return Base::forward(x); }

  /// A layer that computes the same over the same tensors, with an empty slot. A derived class
  /// returns twin_of(*this).
  virtual std::shared_ptr<Replaceable> twin() const {
    return ::tutti::detail::make<Replaceable>(static_cast<const Base&>(*this));
  }

  /// The layer's torch::nn form also gives indices; refused once something stands in.
  template <class B = Base>
    requires requires(B& base, const at::Tensor& x) { base.forward_with_indices(x); }
  auto forward_with_indices(const at::Tensor& x) {
    TUTTI_CHECK(!slot_, this->name(), " was replaced by ", slot_.module()->name(),
                ", which gives no indices; call forward(), or keep this layer out of the surgery.");
    return B::forward_with_indices(x);
  }

  /// A deep copy of a twin, with the same parameters frozen. Throws c10::Error when something
  /// stands in.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if (slot_) {
      refuse_clone(*this);
    }
    const auto tensors = std::dynamic_pointer_cast<Base>(Base::clone(device));
    auto copy = twin();
    static_cast<Base&>(*copy) = *tensors;
    detail::keep_frozen(*this, *copy);
    return copy;
  }

  /// Where surgery puts what stands in; assigning an empty slot gives the layer back.
  Slot& slot() noexcept override { return slot_; }
  const Slot& slot() const noexcept { return slot_; }

 protected:
  /// A copy of `layer`, which shares its tensors, with an empty slot.
  template <std::derived_from<Replaceable> D>
  static std::shared_ptr<D> twin_of(const D& layer) {
    auto copy = ::tutti::detail::make<D>(layer);
    copy->slot() = {};
    return copy;
  }

 private:
  Slot slot_;
};

/// A replaceable layer over the tensors of `layer`, with an empty slot: what a replacement keeps
/// to compute what the old layer did. Options may be changed on it without changing the old one.
///
/// Parameters and buffers are the same objects, so that optimizer state, tied weights,
/// requires_grad and dtype are kept.
template <TensorModule Base>
std::shared_ptr<Replaceable<Base>> twin(const Base& layer) {
  if (const auto* replaceable = dynamic_cast<const Replaceable<Base>*>(&layer)) {
    return replaceable->twin();
  }
  TUTTI_CHECK(typeid(layer) == typeid(Base), layer.name(), " derives from ",
              c10::demangle(typeid(Base).name()),
              ", so a twin of it would lose what it adds; derive it from the layer of the same "
              "name in tutti::nn and override compute() and twin().");
  return ::tutti::detail::make<Replaceable<Base>>(layer);
}

/// Base of modules that stand in for layers: a torch::nn::Module that says why it has no clone().
class Substitute : public torch::nn::Module {
 public:
  ~Substitute() override;
  using torch::nn::Module::Module;

  /// Throws c10::Error, see refuse_clone().
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& = std::nullopt) const override {
    refuse_clone(*this);
  }
};

/// A module that has to stay in the slot of its layer, which surgery then refuses to replace.
class StaysInSlot {
 public:
  StaysInSlot() = default;
  virtual ~StaysInSlot() = default;
  StaysInSlot(const StaysInSlot&) = delete;
  StaysInSlot& operator=(const StaysInSlot&) = delete;

  /// Why, and what to do: "is spread over ranks; leave that out".
  [[nodiscard]] virtual std::string why_it_stays() const = 0;
};

}  // namespace tutti::nn

/// What programs use of the replaceable layer of a torch::nn one: see TUTTI_TEMPLATE.
#define TUTTI_LAYER(Impl)                                                                    \
  TUTTI_TEMPLATE class tutti::nn::Replaceable<torch::nn::Impl>;                              \
  TUTTI_TEMPLATE std::shared_ptr<tutti::nn::Impl>                                            \
      torch::nn::Module::register_module<tutti::nn::Impl>(std::string,                       \
                                                          std::shared_ptr<tutti::nn::Impl>); \
  TUTTI_TEMPLATE std::shared_ptr<tutti::nn::Impl>                                            \
  torch::nn::Module::register_module<tutti::nn::Impl>(std::string,                           \
                                                      torch::nn::ModuleHolder<tutti::nn::Impl>)

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE Substitute::~Substitute() = default;

}  // namespace tutti::nn

#endif
