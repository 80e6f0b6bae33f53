// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/nn/sync_batchnorm.hpp>

/// SyncBatchNorm: batch normalisation over the batches of all ranks.
namespace tutti {

/// Lets the batch normalisations of the model use the mean and variance of all ranks' batches, so
/// that many small batches are normalised as the one that they make.
///
/// Source: PyTorch, `torch.nn.SyncBatchNorm.convert_sync_batchnorm`.
struct SyncBatchNorm final {
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when the model has no such layer

  static constexpr std::string_view name = "SyncBatchNorm";
  static constexpr About about{.reads_batch = false};
  using events = types<Init>;
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<uses_batch_statistics>,
               id<replaces_layers<nn::BatchNorm1d, nn::BatchNorm2d>>},
      .runs_after = {{id<SqueezeExcite>, one_order_of_surgeries},
                     {id<Factorize>, one_order_of_surgeries},
                     {id<BlurPool>, one_order_of_surgeries}},
      .conflicts_with = {{id<GhostBatchNorm>,
                          "one makes normalised batches larger, the other smaller"}},
  };

  /// Changes the model where there are several ranks, and logs `sync_batchnorm/num_layers`: how
  /// many layers sum over ranks then.
  void apply(Init, State& state) const;
};

namespace functional {

/// Lets the BatchNorm1d, 2d and 3d layers of `model` normalise with the statistics of all ranks.
///
/// sum: over the ranks, called in the forward and in the backward pass; `dist::Communicator` has
/// one. Parameters and buffers stay the same tensors under the same names. A layer that does so
/// already stays. Throws c10::Error when nothing was replaced and if_none is error.
/// Source: PyTorch, `torch.nn.SyncBatchNorm.convert_sync_batchnorm`.
surgery::Report apply_sync_batchnorm(torch::nn::Module& model, const SumOverRanks& sum,
                                     const SyncBatchNorm& options = {},
                                     const surgery::Optimizers& optimizers = {});

/// The same over the ranks of `group`, which the layers keep.
surgery::Report apply_sync_batchnorm(torch::nn::Module& model,
                                     std::shared_ptr<dist::Communicator> group,
                                     const SyncBatchNorm& options = {},
                                     const surgery::Optimizers& optimizers = {});

}  // namespace functional

namespace detail {

template <class Layer>
void synchronize(torch::nn::Module& model, const SumOverRanks& sum, const surgery::Options& how,
                 surgery::Report& report) {
  using Plain = typename Layer::Impl::Plain;
  auto wrapped = [&](Plain& layer, const surgery::Visit&) -> surgery::Replacement {
    if (dynamic_cast<nn::SyncBatchNorm*>(&layer) != nullptr) {
      return surgery::Replacement::keep("sums over ranks already");
    }
    return std::make_shared<nn::SyncBatchNormImpl<Layer>>(layer, sum);
  };
  report.add(surgery::replace<Layer>(model, wrapped, how));
}

}  // namespace detail

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/sync_batchnorm.inl.hpp>
#endif
