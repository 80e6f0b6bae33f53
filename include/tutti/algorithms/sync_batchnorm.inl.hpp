// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/sync_batchnorm.hpp>

#include <tutti/core/detail/throw.hpp>

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_sync_batchnorm(torch::nn::Module& model, const SumOverRanks& sum,
                                                  const SyncBatchNorm& options,
                                                  const surgery::Optimizers& optimizers) {
  const surgery::Options how = {.optimizers = optimizers, .who = SyncBatchNorm::name};
  surgery::Report report;
  detail::synchronize<nn::BatchNorm1d>(model, sum, how, report);
  detail::synchronize<nn::BatchNorm2d>(model, sum, how, report);
  detail::synchronize<nn::BatchNorm3d>(model, sum, how, report);
  if (report.replaced.empty()) {
    surgery::report_none(options.if_none, "BatchNorm1d, 2d or 3d", how.who, report.kept);
  }
  return report;
}

TUTTI_INLINE surgery::Report apply_sync_batchnorm(torch::nn::Module& model,
                                                  std::shared_ptr<dist::Communicator> group,
                                                  const SyncBatchNorm& options,
                                                  const surgery::Optimizers& optimizers) {
  TUTTI_CHECK(group != nullptr,
              "SyncBatchNorm: there is no group of ranks; dist::initialize() makes one");
  return apply_sync_batchnorm(
      model, [group = std::move(group)](const at::Tensor& one) { group->all_reduce(one); }, options,
      optimizers);
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void SyncBatchNorm::apply(Init, State& state) const {
  torch::nn::Module& model = *state.model;
  if (state.communicator->size() > 1) {
    functional::apply_sync_batchnorm(model, state.communicator, *this, state.optimizers);
  } else if (surgery::count<torch::nn::BatchNorm1d>(model) +
                 surgery::count<torch::nn::BatchNorm2d>(model) +
                 surgery::count<torch::nn::BatchNorm3d>(model) ==
             0) {  // as it would be said with more ranks
    surgery::report_none(if_none, "BatchNorm1d, 2d or 3d", name);
  }
  state.logger.log_hyperparameters(
      {{"sync_batchnorm/num_layers", surgery::count<nn::SyncBatchNorm>(model)}});
}

}  // namespace tutti
