// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/core/time.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/gradients.hpp>

/// LocalSGD: ranks train apart and average their parameters now and then.
namespace tutti {

namespace detail {

// Those that require a gradient.
inline std::vector<at::Tensor> parameters_in_training(const torch::nn::Module& model) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) {
      trained.push_back(parameter);
    }
  }
  return trained;
}

}  // namespace detail

namespace functional {

/// Replaces every trainable parameter of a model by its mean over the ranks; a collective.
inline void average_parameters(torch::nn::Module& model, dist::Communicator& group) {
  dist::average_over_ranks(tutti::detail::parameters_in_training(model), group);
}

}  // namespace functional

/// Averages the parameters over the ranks every so many batches; gradients are never sent.
///
/// The ranks' optimizers keep their own momentum. Before an evaluation, in a checkpoint and at the
/// end of fit() the parameters are averaged, too, so that all ranks have the same.
/// Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; PyTorch,
/// `torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager`.
struct LocalSGD final {
  Time interval = "100ba";  ///< between two averages; in ba
  Time start = "0ba";       ///< before it parameters are averaged after each batch; in ba

  /// What it holds while it runs; not an option.
  struct Run {
    std::vector<at::Tensor> trained{};  ///< since the last average
  } run{};

  static constexpr std::string_view name = "LocalSGD";
  static constexpr About about{
      .reads_batch = false,
      .no_sharding = "each rank trains a whole model of its own between two averages",
  };
  using events = types<FitStart, BatchEnd, EvalStart, FitEnd>;
  static constexpr Rules rules{
      .tags = {id<averages_ranks>},
      .runs_after = {{id<changes_model>, "it averages the model's parameters"}},
      .conflicts_with = {{id<averages_ranks>, "both would decide when the ranks meet"},
                         {id<averages_weights>,
                          "each rank would average weights that no other rank has"}},
  };

  /// Throws c10::ValueError when the options are out of range.
  constexpr void validate() const {
    expect(interval.unit() == TimeUnit::batch, "LocalSGD: interval", interval, "a time in ba");
    expect(interval.value() >= 1, "LocalSGD: interval", interval, "1ba or more");
    expect(start.unit() == TimeUnit::batch, "LocalSGD: start", start, "a time in ba");
    expect(start.value() >= 0, "LocalSGD: start", start, "0ba or more");
  }

  bool match(BatchEnd, const State& state) const {
    return state.timestamp.batch <= start.count() ||
           (state.timestamp.batch - start.count()) % interval.count() == 0;
  }

  void apply(FitStart, State& state) { run.trained = detail::parameters_in_training(*state.model); }
  void apply(BatchEnd, State& state) { meet(state); }
  void apply(EvalStart, State& state) { meet(state); }
  void apply(FitEnd, State& state) { meet(state); }

  void enter_checkpoint(State& state) { meet(state); }
  void leave_checkpoint(State&) {}

 private:
  void meet(State& state) {
    std::vector<at::Tensor> trained = detail::parameters_in_training(*state.model);
    std::vector<at::Tensor> apart = trained;
    for (const at::Tensor& before : run.trained) {
      if (!before.requires_grad()) {  // frozen since
        apart.push_back(before);
      }
    }
    dist::average_over_ranks(apart, *state.communicator);
    run.trained = std::move(trained);
  }
};

}  // namespace tutti
