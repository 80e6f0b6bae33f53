// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/detail/operation.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/replacement.hpp>
#include <tutti/nn/slot.hpp>
#include <tutti/nn/walk.hpp>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

// What surgery says about layers that it did not replace.

namespace tutti::surgery {

/// What a surgery does when it replaced nothing.
enum class IfNone {
  ignore,  ///< nothing; the report says so
  warn,    ///< a warning
  error,   ///< c10::Error
};

/// A layer that a surgery passed over.
struct Kept {
  std::string path;  ///< "layer1.0.conv1"
  std::string why;   ///< the reason as a word or two: "stride 1", "blurred already"
};

namespace detail {

/// "torch::nn::Conv2d" for torch::nn::Conv2dImpl.
std::string layer_name(const std::type_info& type);

/// Names up to `most` paths: "conv1, conv2 and 7 more".
std::string listed(const std::vector<std::string>& paths, std::size_t most = 4);

/// "tutti::nn::Conv2d" for "torch::nn::Conv2d": what to declare instead.
std::string replaceable_name(const std::string& layer);

/// "a, b (stride 1); c (blurred already)": layers with the same reason together.
std::string listed_with_reasons(const std::vector<Kept>& kept);

/// Says which layers could not be replaced and what to change.
void warn_skipped(const std::vector<std::string>& skipped, const std::string& layer,
                  std::string_view who);

}  // namespace detail

/// Warns or throws c10::Error as `if_none` says; called when a surgery replaced nothing.
///
/// what: the layers that were looked for, "strided Conv2d". who: the surgery, "BlurPool". kept: the
/// layers of that kind that the model has, each with the reason why it stays.
void report_none(IfNone if_none, std::string_view what, std::string_view who,
                 const std::vector<Kept>& kept = {});

}  // namespace tutti::surgery

/// Replacing layers of a finished model by others, with its optimizers in step.
///
///     // every strided convolution by a blurred one
///     auto report = tutti::surgery::replace<tutti::nn::Conv2d>(
///         *model,
///         [](torch::nn::Conv2dImpl& conv) {
///           return conv.options.stride()->at(0) > 1 ? std::make_shared<BlurConv2dImpl>(conv)
///                                                   : nullptr;
///         },
///         {.optimizers = optimizers});
namespace tutti::surgery {

/// How replace() goes about it.
struct Options {
  Optimizers optimizers = {};  ///< kept in step; none: only the model changes
  IfNone if_none = IfNone::ignore;
  std::string_view who = "surgery";  ///< who asked, for warnings and errors: "BlurPool"
  bool keep_dtype = true;            ///< new tensors take the floating dtype of the old layer
};

/// What replace() did.
struct Report {
  std::vector<std::string> replaced;  ///< paths of the layers that were replaced
  std::vector<std::string> skipped;   ///< paths of those that could not be replaced
  std::vector<Kept> kept;             ///< all that were not replaced, with the reasons
  std::int64_t visited = 0;           ///< layers of the type that was asked for

  /// How many distinct layers were replaced.
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(replaced.size()); }

  /// Adds what was done to layers of another kind.
  void add(const Report& other) {
    replaced.insert(replaced.end(), other.replaced.begin(), other.replaced.end());
    skipped.insert(skipped.end(), other.skipped.begin(), other.skipped.end());
    kept.insert(kept.end(), other.kept.begin(), other.kept.end());
    visited += other.visited;
  }
};

/// `L` is a holder of a replaceable layer, as tutti::nn::Conv2d.
template <class L>
concept ReplaceableLayer =
    std::derived_from<typename L::Impl, nn::Replaceable<typename L::Impl::Plain>>;

/// `F` decides about each `Plain` layer: `policy(layer)` or `policy(layer, where)` converts to a
/// Replacement.
template <class F, class Plain>
concept ReplacementPolicy = requires(F& policy, Plain& layer, const Visit& where) {
  { policy(layer, where) } -> std::convertible_to<Replacement>;
} || requires(F& policy, Plain& layer) {
  { policy(layer) } -> std::convertible_to<Replacement>;
};

namespace detail {

// Plain bools: no tour of the concepts in a compiler's message.
template <class L>
inline constexpr bool has_slot = ReplaceableLayer<L>;
template <class F, class Plain>
inline constexpr bool replaces = ReplacementPolicy<F, Plain>;

template <class Layer, class Policy>
Report replace(torch::nn::Module& model, Policy& policy, const Options& options) {
  using Plain = typename Layer::Impl::Plain;
  const std::string layer_name = detail::layer_name(typeid(Plain));
  Report report;
  detail::Operation operation(model);
  for (Visit& where : walk(model)) {
    auto* layer = dynamic_cast<Plain*>(where.module.get());
    if (layer == nullptr) {
      continue;
    }
    where.index = report.visited++;
    Replacement replacement;
    if constexpr (std::invocable<Policy&, Plain&, const Visit&>) {
      replacement = policy(*layer, std::as_const(where));
    } else {
      replacement = policy(*layer);
    }
    if (replacement.module() == nullptr) {
      report.kept.push_back(
          {where.path, replacement.why().empty() ? "not wanted" : replacement.why()});
      continue;
    }
    auto* slotted = dynamic_cast<nn::Replaceable<Plain>*>(layer);
    const std::type_info& type = typeid(*layer);
    const bool exact = type == typeid(Plain) || type == typeid(typename Layer::Impl);
    if (slotted == nullptr && !(exact && detail::only_in_sequentials(where))) {
      report.skipped.push_back(where.path);
      report.kept.push_back(
          {where.path, "a plain member that its parent calls directly: declare it as " +
                           detail::replaceable_name(layer_name) + ", or put it into a Sequential"});
      continue;
    }
    report.replaced.push_back(where.path);
    operation.add(std::move(where), std::move(replacement),
                  slotted == nullptr ? nullptr : &slotted->slot(), exact);
  }
  operation.commit(options.optimizers, options.keep_dtype);
  detail::warn_skipped(report.skipped, layer_name, options.who);
  if (report.replaced.empty()) {
    report_none(options.if_none, layer_name, options.who, report.kept);
  }
  return report;
}

}  // namespace detail

/// Replaces the layers of `model` for which `policy` returns another module.
///
/// Layer: a holder from tutti::nn. The policy sees every distinct layer of that kind below the
/// root, plain torch::nn ones and derived classes included, in the order of walk(), as
/// `torch::nn::...Impl&`; `where.index` counts them. It returns what takes the layer's place, a
/// module that maps a tensor to a tensor, or null to keep the layer; Replacement::keep("stride 1")
/// does so with a reason, which is said when nothing was replaced. What computes with the old
/// layer keeps a nn::twin() of it, never the layer itself. The policy changes nothing: the model is
/// altered after it has seen all layers, so that an exception leaves everything as it was.
///
/// Every parent is re-pointed: its registry, its typed member through the layer's slot, and the
/// AnyModule of a torch::nn::Sequential, where plain layers can be replaced too. Plain layers
/// elsewhere cannot; they are listed in `skipped` and in a warning. The replacement goes to the
/// device, floating dtype and train or eval mode of the old layer. In the optimizers, parameters
/// that leave the model are dropped with their state; new ones join the group of the parameter
/// whose role they take, with its requires_grad; those that are kept are left alone.
///
/// Replacements are not visited; the root is never replaced.
/// Throws c10::Error when a replacement holds the layer it replaces, when an added parameter fits
/// no optimizer group, and for a policy that replaced nothing if options.if_none says so.
template <class Layer, class Policy>
Report replace(torch::nn::Module& model, Policy&& policy, const Options& options = {}) {
  static_assert(detail::has_slot<Layer>,
                "tutti: this layer has no slot, so it cannot be replaced; name the layer's holder "
                "in tutti::nn, as surgery::replace<tutti::nn::Conv2d>.");
  if constexpr (detail::has_slot<Layer>) {
    using Plain = typename Layer::Impl::Plain;
    static_assert(detail::replaces<Policy, Plain>,
                  "tutti: this is not a replacement policy; make it callable as policy(layer) or "
                  "policy(layer, const surgery::Visit&), layer being the torch::nn::...Impl&, and "
                  "let it return a shared_ptr to a module with Tensor forward(const Tensor&).");
    if constexpr (detail::replaces<Policy, Plain>) {
      return detail::replace<Layer>(model, policy, options);
    }
  }
}

/// Takes back a replacement: every parent of `where.module` gets the layer that it stood for.
///
/// base: a twin of that layer, for a Sequential that has called the replacement directly, and where
/// no layer is left. original: the layer itself, whose slot is emptied; null when nobody holds it
/// any more. Optimizers are not looked at.
inline void put_back(const Visit& where, const Replacement& base,
                     const std::shared_ptr<torch::nn::Module>& original) {
  for (const Site& site : where.sites) {
    bool called = false;
    if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(site.parent)) {
      for (torch::nn::AnyModule& module : *sequential) {
        if (module.ptr() == where.module) {
          module = base.any();
          called = true;
        }
      }
    }
    site.parent->replace_module(site.name, called || !original ? base.module() : original);
  }
  if (auto* slotted = dynamic_cast<nn::Slotted*>(original.get())) {
    slotted->slot() = {};
  }
}

}  // namespace tutti::surgery

#if TUTTI_BODIES
#include <tutti/nn/surgery.inl.hpp>
#endif
