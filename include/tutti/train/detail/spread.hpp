// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/detail/spread_model.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/module.h>

/// A run whose model is spread over ranks: which of them read the same examples.
namespace tutti::train::detail {

/// Over which ranks a model is spread; null: every rank has all of it.
inline std::shared_ptr<const dist::SpreadModel> spread_of(const torch::nn::Module& model) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto* const layer = dynamic_cast<nn::Slotted*>(module.get());
    const auto* const spread =
        layer != nullptr && layer->slot()
            ? dynamic_cast<const dist::SpreadLayer*>(layer->slot().module().get())
            : nullptr;
    if (spread != nullptr) {
      return spread->spread_model();
    }
  }
  return nullptr;
}

/// The ranks that read different examples; all of them where the model is not spread.
inline const std::shared_ptr<dist::Communicator>& data_group(const State& state) {
  return state.spread != nullptr ? state.spread->data_group() : state.communicator;
}

/// This rank among these.
inline int data_rank(const State& state) {
  return state.spread != nullptr ? state.spread->data_group()->rank() : state.rank;
}

/// How many these are.
inline int data_ranks(const State& state) {
  return state.spread != nullptr ? state.spread->data_group()->size() : state.world_size;
}

}  // namespace tutti::train::detail
