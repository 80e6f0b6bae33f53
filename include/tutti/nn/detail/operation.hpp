// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/detail/parameter_groups.hpp>
#include <tutti/nn/replacement.hpp>
#include <tutti/nn/walk.hpp>

#include <torch/nn/modules/container/sequential.h>

/// Carrying out a set of replacements: everything about surgery that does not depend on the layer.
namespace tutti::surgery::detail {

/// All that a Sequential calls is a registered child, so a plain layer can be exchanged there.
bool only_in_sequentials(const Visit& where);

/// The device and floating dtype of a module's tensors, where it has any.
struct Placement {
  std::optional<torch::Device> device;
  std::optional<torch::Dtype> dtype;

  static Placement of(const torch::nn::Module& module);

  /// What is missing here is taken from `other`.
  [[nodiscard]] Placement otherwise(const Placement& other) const {
    return {device ? device : other.device, dtype ? dtype : other.dtype};
  }

  /// Moves a tensor of a module, so that everybody who holds it sees it moved.
  void move(at::Tensor tensor, bool with_dtype) const;
};

/// A set of replacements, collected first and then made at once.
class Operation {
 public:
  explicit Operation(torch::nn::Module& model) : model_(model) {}

  /// `where.module` gives way to `replacement`. slot: the layer's, null for a plain layer.
  /// exact: of no derived class, so that a Sequential may call the replacement directly.
  void add(Visit where, Replacement replacement, nn::Slot* slot, bool exact);

  /// Changes the model and the optimizers; throws before it has changed anything.
  void commit(const Optimizers& optimizers, bool keep_dtype);

 private:
  struct Step {
    Visit where;
    Replacement replacement;
    nn::Slot* slot;
    bool exact;
  };

  // The replacement of the outer layer may or may not keep the inner one: there is no right answer.
  void refuse_nesting(const Visit& where) const;

  // A replacement that calls the layer it replaces would call itself through the layer's slot.
  static void refuse_loop(const Visit& where, const Replacement& replacement);

  void place_tensors(const Census& before, bool keep_dtype) const;

  static void repoint(Step& step);

  torch::nn::Module& model_;
  std::vector<Swap> swaps_;
  std::vector<Step> steps_;
};

}  // namespace tutti::surgery::detail

#if TUTTI_BODIES

namespace tutti::surgery::detail {

TUTTI_INLINE bool only_in_sequentials(const Visit& where) {
  for (const Site& site : where.sites) {
    auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(site.parent);
    if (sequential == nullptr) {
      return false;
    }
    bool called = false;
    for (const torch::nn::AnyModule& module : std::as_const(*sequential)) {
      called = called || module.ptr() == where.module;
    }
    if (!called) {
      return false;
    }
  }
  return true;
}

TUTTI_INLINE Placement Placement::of(const torch::nn::Module& module) {
  Placement result;
  auto look = [&result](const at::Tensor& tensor) {
    if (!result.device) {
      result.device = tensor.device();
    }
    if (!result.dtype && tensor.is_floating_point()) {
      result.dtype = tensor.scalar_type();
    }
  };
  for (const at::Tensor& parameter : module.parameters()) {
    look(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    look(buffer);
  }
  return result;
}

TUTTI_INLINE void Placement::move(at::Tensor tensor, bool with_dtype) const {
  const torch::Device to_device = device.value_or(tensor.device());
  const bool cast = with_dtype && dtype && tensor.is_floating_point();
  const torch::Dtype to_dtype = cast ? *dtype : tensor.scalar_type();
  if (to_device != tensor.device() || to_dtype != tensor.scalar_type()) {
    tensor.set_data(tensor.detach().to(to_device, to_dtype));
  }
}

TUTTI_INLINE void Operation::add(Visit where, Replacement replacement, nn::Slot* slot, bool exact) {
  if (slot != nullptr && *slot) {
    const auto* const stays = dynamic_cast<const nn::StaysInSlot*>(slot->module().get());
    TUTTI_CHECK(stays == nullptr, "surgery: the layer '", where.path, "' ", stays->why_it_stays());
  }
  refuse_nesting(where);
  refuse_loop(where, replacement);
  swaps_.push_back({where.module, replacement.module(), where.path});
  steps_.push_back({std::move(where), std::move(replacement), slot, exact});
}

TUTTI_INLINE void Operation::commit(const Optimizers& optimizers, bool keep_dtype) {
  const Census before(model_);
  const Census after(model_, swaps_);
  std::vector<Addition> added = additions(swaps_, before, after);
  Places places(optimizers);
  for (Addition& addition : added) {
    addition.places = places.of(addition, before);
  }
  for (const Addition& addition : added) {
    if (addition.inherits && !addition.origin.requires_grad()) {
      addition.parameter.tensor.set_requires_grad(false);
    }
  }
  place_tensors(before, keep_dtype);
  for (Step& step : steps_) {
    repoint(step);
  }
  remove_parameters(optimizers, before, after);
  for (const Addition& addition : added) {
    places.add(addition.parameter.tensor, addition.places);
  }
}

TUTTI_INLINE void Operation::refuse_nesting(const Visit& where) const {
  for (const Swap& swap : swaps_) {
    for (torch::nn::Module* ancestor : where.ancestors) {
      TUTTI_CHECK(ancestor != swap.before.get(), "the policy replaces ", where.path, " and ",
                  swap.path, ", which contains it; replace them in two calls, inner one first.");
    }
  }
}

TUTTI_INLINE void Operation::refuse_loop(const Visit& where, const Replacement& replacement) {
  bool loop = replacement.module() == where.module;
  for (const Visit& inner : walk(*replacement.module())) {
    loop = loop || inner.module == where.module;
  }
  TUTTI_CHECK(!loop, "the replacement of ", where.path, " (", replacement.module()->name(),
              ") holds the very layer that it replaces, so its forward would never end; keep ",
              "tutti::nn::twin(layer) in it instead.");
}

TUTTI_INLINE void Operation::place_tensors(const Census& before, bool keep_dtype) const {
  Addresses kept;
  for (const at::Tensor& buffer : model_.buffers()) {
    kept.insert(buffer.unsafeGetTensorImpl());
  }
  const Placement of_model = Placement::of(model_);
  for (const Step& step : steps_) {
    torch::nn::Module& module = *step.replacement.module();
    const Placement placement = Placement::of(*step.where.module).otherwise(of_model);
    for (const at::Tensor& parameter : module.parameters()) {
      if (!before.contains(parameter)) {
        placement.move(parameter, keep_dtype);
      }
    }
    for (const at::Tensor& buffer : module.buffers()) {
      if (!kept.contains(buffer.unsafeGetTensorImpl())) {
        placement.move(buffer, keep_dtype);
      }
    }
    module.train(step.where.module->is_training());
  }
}

TUTTI_INLINE void Operation::repoint(Step& step) {
  for (const Site& site : step.where.sites) {
    if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(site.parent);
        sequential != nullptr && step.exact) {
      for (torch::nn::AnyModule& module : *sequential) {
        if (module.ptr() == step.where.module) {
          module = step.replacement.any();
        }
      }
    }
    site.parent->replace_module(site.name, step.replacement.module());
  }
  if (step.slot != nullptr) {
    *step.slot = step.replacement.slot();
  }
}

}  // namespace tutti::surgery::detail

#endif
