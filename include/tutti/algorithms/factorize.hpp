// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/interval.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/factorized.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/optim/sgd.hpp>

#include <ATen/ops/linalg_pinv.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

// Optimizer state that goes on when a parameter gives way to others.

namespace tutti::detail {

/// How what an optimizer remembers of gradients follows a change of variables: `linear` for sums of
/// gradients, `square` for sums of their squares.
struct StateMapping {
  std::function<at::Tensor(const at::Tensor&)> linear;
  std::function<at::Tensor(const at::Tensor&)> square;

  /// The parameter is another, the numbers are the same.
  static StateMapping unchanged();

  /// The new parameter's gradient is `left * gradient * right`, of the parameter as a matrix; the
  /// squares follow as if its numbers were independent. shape: of the new parameter.
  static StateMapping product(const at::Tensor& left, const at::Tensor& right,
                              at::IntArrayRef shape);
};

/// Changes `state`, a copy, to that of `parameter`. False for optimizers that are not known.
bool map_state(torch::optim::OptimizerParamState& state, const at::Tensor& parameter,
               const StateMapping& how);

/// Carries optimizer state over a surgery: capture() before it, restore() after it.
class OptimizerStateMigration {
 public:
  explicit OptimizerStateMigration(surgery::Optimizers optimizers)
      : optimizers_(std::move(optimizers)) {}

  /// `after` will take over from `before`.
  void capture(const at::Tensor& before, const at::Tensor& after, const StateMapping& how);

  /// Puts `after` into the place of `before` in every group, for surgery by hand.
  void replace(const at::Tensor& before, const at::Tensor& after);

  /// Hands out what was noted.
  void restore();

 private:
  struct Noted {
    torch::optim::Optimizer* optimizer;
    at::Tensor parameter;
    std::unique_ptr<torch::optim::OptimizerParamState> state;
  };

  surgery::Optimizers optimizers_;
  std::vector<Noted> noted_;
};

}  // namespace tutti::detail

/// Factorize: wide layers as products of two thinner ones.
namespace tutti {

namespace detail {

// State of the two factors from that of the whole: W = b a, so da = b^T dW and db = dW a^T.
template <class Layer>
void note_split(OptimizerStateMigration& carried, const typename Layer::Impl::Plain& layer,
                const nn::FactorizedImpl<Layer>& two) {
  const nn::Factorized::Factors matrices = two.factors();
  const nn::Factorized::Factors to = two.parameters_by_role();
  carried.capture(layer.weight, to.a, StateMapping::product(matrices.b.t(), {}, to.a.sizes()));
  carried.capture(layer.weight, to.b, StateMapping::product({}, matrices.a.t(), to.b.sizes()));
  if (layer.bias.defined()) {
    carried.capture(layer.bias, to.bias, StateMapping::unchanged());
  }
}

// Gives `layer` the factors `next` with what optimizers know of the present ones. With a' = t a and
// b' = b r the gradients are da' = r^T da and db' = db t^T.
void refactor(nn::Factorized& layer, const nn::Factorized::Factors& next,
              const surgery::Optimizers& optimizers);

}  // namespace detail

namespace functional {

/// What apply_factorization does unless told otherwise. Latent sizes: from 1 on a number of
/// channels or features, below 1 a fraction of the smaller side; > 0.
struct FactorizationOptions {
  bool factorize_convs = true;
  bool factorize_linears = true;
  std::int64_t min_channels = 512;  ///< convolutions with fewer channels in or out stay; >= 1
  double latent_channels = 0.25;
  std::int64_t min_features = 512;  ///< linear layers with fewer features in or out stay; >= 1
  double latent_features = 0.25;
  bool add_bias = false;  ///< also to convolutions that have none; what the reference does
  surgery::IfNone if_none = surgery::IfNone::ignore;  ///< when nothing was replaced

  /// Throws c10::ValueError for options that cannot be meant.
  constexpr void validate() const {
    expect(factorize_convs || factorize_linears,
           "Factorize: factorize_convs and factorize_linears are both false, so it would do "
           "nothing; set one, or take Factorize out of the recipe.");
    expect(min_channels >= 1, "Factorize: min_channels", min_channels, "at least 1");
    expect(min_features >= 1, "Factorize: min_features", min_features, "at least 1");
    expect(latent_channels > 0, "Factorize: latent_channels", latent_channels, "more than 0");
    expect(latent_features > 0, "Factorize: latent_features", latent_features, "more than 0");
  }
};

/// What apply_factorization did.
struct FactorizationReport {
  surgery::Report convs;
  surgery::Report linears;
};

/// Replaces wide convolutions and linear layers of `model` by two thinner ones each, the best
/// approximation of the weights they have, and keeps `optimizers` in step.
///
/// Replaced are those for which two layers take less work; not convolutions with groups, nor layers
/// inside a factored one, so that a second application changes nothing. The new weights are
/// `....module0.weight`, `....module1.weight` and `....module1.bias`; momentum and second moments
/// follow from those of the old ones.
/// Throws as FactorizationOptions::validate(), and c10::Error when nothing was replaced and
/// if_none is error.
/// Source: Zhang et al., "Accelerating Very Deep Convolutional Networks", TPAMI 2016; MosaicML
/// Composer, `composer.algorithms.factorize.apply_factorization`.
FactorizationReport apply_factorization(torch::nn::Module& model,
                                        const FactorizationOptions& options = {},
                                        const surgery::Optimizers& optimizers = {});

/// Lowers the ranks of the factored layers of `model` as far as `energy` of the sum of squared
/// singular values of each is kept. Layers that another surgery has changed stay, and those whose
/// weight is zero.
///
/// energy: in (0, 1]. Optimizers keep what they know of the factors.
/// Returns how many layers got a lower rank.
std::int64_t refactorize(torch::nn::Module& model, double energy,
                         const surgery::Optimizers& optimizers = {});

}  // namespace functional

/// Replaces wide layers by two thinner ones each, and may make them thinner as training goes on.
///
/// Latent sizes: from 1 on a number of channels or features, below 1 a fraction of the smaller
/// side; > 0.
/// Source: Zhang et al., "Accelerating Very Deep Convolutional Networks", TPAMI 2016.
struct Factorize final {
  bool factorize_convs = true;
  bool factorize_linears = true;
  std::int64_t min_channels = 256;  ///< convolutions with fewer channels in or out stay; >= 1
  double latent_channels = 0.25;
  std::int64_t min_features = 256;  ///< linear layers with fewer features in or out stay; >= 1
  double latent_features = 128;
  bool add_bias = false;        ///< also to convolutions that have none; what the reference does
  Time refactorize_interval{};  ///< how often ranks are lowered, "2ep", "500ba"; 0: never
  double refactorize_energy = 0.99;  ///< part of the squared singular values to keep; in (0, 1]
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when nothing was replaced

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<std::vector<std::int64_t>> ranks{};  ///< of all layers, once lowered
  } run{};

  static constexpr std::string_view name = "Factorize";
  static constexpr About about{.reads_batch = false, .required_on_load = true};
  using events = types<Init, BatchEnd, EpochEnd, IterationEnd>;
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<replaces_layers<nn::Conv2d, nn::Linear>>,
               id<adds_layers<nn::Conv2d, nn::Linear>>},
      .runs_before = {{id<BlurPool>, "the first of two convolutions has the stride"}},
      .runs_after = {{id<GatedLinearUnits>,
                      "the block that it replaces would take its factors along"},
                     {id<ALiBi>, "attention is changed on the layers as they were"}},
  };

  /// Throws c10::ValueError for options that cannot be meant.
  constexpr void validate() const {
    options().validate();
    expect(refactorize_energy > 0 && refactorize_energy <= 1, "Factorize: refactorize_energy",
           refactorize_energy, "a number above 0 and up to 1");
    expect(refactorize_interval.value() >= 0, "Factorize: refactorize_interval",
           refactorize_interval, "0 or more");
  }

  /// What it does to the model before training is no reason.
  [[nodiscard]] constexpr std::string_view why_no_sharding() const {
    return refactorize_interval ? "it exchanges parameters while the model trains; set "
                                  "refactorize_interval to 0"
                                : "";
  }

  bool match(BatchEnd, const State& state) const { return is_due(BatchEnd{}, state); }
  bool match(EpochEnd, const State& state) const { return is_due(EpochEnd{}, state); }
  bool match(IterationEnd, const State& state) const { return is_due(IterationEnd{}, state); }

  /// Changes the model, and logs `factorize/num_conv2d_replacements` and
  /// `factorize/num_linear_replacements`: how many factored layers it has then.
  void apply(Init, State& state) const;

  /// Lowers ranks, and logs `factorize/total_rank`: their sum.
  void apply(BatchEnd, State& state) { lower_ranks(state); }
  void apply(EpochEnd, State& state) { lower_ranks(state); }
  void apply(IterationEnd, State& state) { lower_ranks(state); }

  void save(Archive& archive) const { archive.put("ranks", *run.ranks); }
  void load(const Archive&) const {}

  /// Before weights are read: gives the layers the ranks that they were saved with.
  void prepare_load(const Archive& archive, State& state);

 private:
  [[nodiscard]] constexpr functional::FactorizationOptions options() const {
    return {factorize_convs, factorize_linears, min_channels, latent_channels,
            min_features,    latent_features,   add_bias,     if_none};
  }

  template <class E>
  [[nodiscard]] bool is_due(E event, const State& state) const {
    const Interval interval{
        .every = refactorize_interval, .at_end = IntervalEnd::none, .checkpoint_events = false};
    return bool(refactorize_interval) && interval.due(event, state.progress());
  }

  void lower_ranks(State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/factorize.inl.hpp>
#endif
