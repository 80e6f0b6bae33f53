// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/constants.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/fwd.hpp>

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tutti {

/// `S` describes an optimizer: `spec.build(groups)` makes one over these parameter groups.
template <class S>
concept OptimizerRecipe =
    requires(const S& spec, std::vector<torch::optim::OptimizerParamGroup> groups) {
      {
        spec.build(std::move(groups))
      } -> std::convertible_to<std::shared_ptr<torch::optim::Optimizer>>;
    };

namespace detail {

template <class F>
concept MakesOptimizer = std::invocable<F, torch::nn::Module&> &&
                         std::convertible_to<std::invoke_result_t<F&, torch::nn::Module&>,
                                             std::shared_ptr<torch::optim::Optimizer>>;

template <class S>
concept NearOptimizer =
    !OptimizerRecipe<S> && !MakesOptimizer<S> &&
    (std::derived_from<S, torch::optim::Optimizer> || std::invocable<S, torch::nn::Module&> ||
     requires { &S::operator(); } || requires { &S::build; });

template <class S>
inline constexpr bool is_optimizer = OptimizerRecipe<S>;  // no tour of the concept in messages

}  // namespace detail

/// How a run gets its optimizer. Converts from
/// - a description, e.g. `DecoupledSGDW{.lr = 0.1, .momentum = 0.9}` or any struct with `build`;
/// - an optimizer that exists: a shared_ptr or unique_ptr to any torch::optim::Optimizer;
/// - a function `(torch::nn::Module& model) -> pointer to an optimizer`, for parameter groups of
///   one's own:
///
///     .optimizer = [](torch::nn::Module& model) {
///       return DecoupledAdamW{.lr = 1e-3}.build(my_groups(model));
///     }
class OptimizerSpec {
 public:
  /// No optimizer.
  OptimizerSpec() = default;
  OptimizerSpec(std::nullptr_t) {}

  template <OptimizerRecipe S>
  OptimizerSpec(S spec) {
    detail::add_constants(constants_, "", spec);
    build_ = [spec = std::move(spec)](torch::nn::Module&, std::vector<at::Tensor> parameters) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::move(parameters));
      return std::shared_ptr<torch::optim::Optimizer>(spec.build(std::move(groups)));
    };
  }

  template <std::derived_from<torch::optim::Optimizer> O>
  OptimizerSpec(std::shared_ptr<O> optimizer) {
    if (optimizer) {
      build_ = [optimizer = std::shared_ptr<torch::optim::Optimizer>(std::move(optimizer))](
                   torch::nn::Module&, const std::vector<at::Tensor>&) { return optimizer; };
    }
  }

  template <std::derived_from<torch::optim::Optimizer> O>
  OptimizerSpec(std::unique_ptr<O> optimizer)
      : OptimizerSpec(std::shared_ptr<O>(std::move(optimizer))) {}

  template <detail::MakesOptimizer F>
  OptimizerSpec(F make)
      : build_([make = std::move(make)](torch::nn::Module& model,
                                        const std::vector<at::Tensor>&) mutable {
          return std::shared_ptr<torch::optim::Optimizer>(make(model));
        }) {}

  /// Refuses what is nearly one of these.
  template <detail::NearOptimizer S>
  OptimizerSpec(const S&) {
    static_assert(detail::is_optimizer<S>,
                  "tutti: a run cannot have its optimizer from this; give a description such as "
                  "tutti::AdamW{.lr = 1e-3}, a std::shared_ptr to an optimizer, or a function of "
                  "torch::nn::Module& that returns one.");
  }

  /// The optimizer of `model`, whose parameters are `parameters`: all of them in one group,
  /// unless a function or a ready optimizer decides otherwise.
  ///
  /// Throws c10::Error when there is none, and what the description throws when its numbers are
  /// wrong.
  std::shared_ptr<torch::optim::Optimizer> build(torch::nn::Module& model,
                                                 std::vector<at::Tensor> parameters) const {
    TUTTI_CHECK(build_,
                "optimizer: none was given; give one, e.g. .optimizer = "
                "tutti::DecoupledSGDW{.lr = 0.1}.");
    auto optimizer = build_(model, std::move(parameters));
    TUTTI_CHECK(optimizer, "optimizer: the function that makes it returned a null pointer.");
    return optimizer;
  }

  explicit operator bool() const noexcept { return static_cast<bool>(build_); }

  /// The members of a description with their values; nothing for anything else.
  [[nodiscard]] const detail::Constants& constants() const { return constants_; }

 private:
  std::function<std::shared_ptr<torch::optim::Optimizer>(torch::nn::Module&,
                                                         std::vector<at::Tensor>)>
      build_;
  detail::Constants constants_;
};

}  // namespace tutti
