// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <tutti/dist/spread_model.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/module.h>

/// Whether a model is spread over ranks, and how.
namespace tutti::models {

/// Over which ranks tensor_parallel() has spread a model; null: every rank has all of it.
///
///     const auto whole = tutti::models::spread_of(*net)->summon();  // on all ranks of a copy
///     // read the whole weights, while `whole` lives
///
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

}  // namespace tutti::models
