// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/unfreeze.hpp>

#include <cstddef>
#include <string>
#include <unordered_set>

#include <tutti/algorithms/detail/frozen_layers.hpp>
#include <tutti/checkpoint/glob.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

// The number of the first layer at or behind the module `from`.
TUTTI_INLINE std::size_t first_layer(torch::nn::Module& model, std::string_view from,
                                     const std::vector<OwnedLayer>& layers) {
  if (from.empty()) {
    return 0;
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (is_at_or_below(layers[i].path, from)) {
      return i;
    }
  }
  std::string names;
  for (const auto& child : model.named_children()) {
    names += (names.empty() ? "" : ", ") + child.key();
  }
  TUTTI_CHECK_VALUE(false, "Unfreeze: from is \"", from,
                    "\", and the model has no module of that path with parameters; its children "
                    "are ",
                    names);
  return 0;
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE std::int64_t freeze_all_but(torch::nn::Module& model, const Keys& train) {
  const auto layers = detail::owned_layers(model);
  std::vector<bool> used(16);
  std::unordered_set<const void*> trained;
  std::vector<const detail::OwnedLayer*> frozen;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    bool trains = train.empty() && i + 1 == layers.size();
    std::size_t number = 0;
    for (const std::string_view glob : train) {
      // A module above the layer may be named as well.
      for (std::size_t end = layers[i].path.size(); end != std::string::npos && end > 0;
           end = layers[i].path.rfind('.', end - 1)) {
        if (checkpoint::glob_matches(glob, std::string_view(layers[i].path).substr(0, end))) {
          trains = used[number] = true;
        }
      }
      ++number;
    }
    if (trains) {
      for (const at::Tensor& parameter : layers[i].parameters) {
        trained.insert(parameter.unsafeGetTensorImpl());
      }
    } else {
      frozen.push_back(&layers[i]);
    }
  }
  std::size_t number = 0;
  for (const std::string_view glob : train) {
    TUTTI_CHECK_VALUE(used[number++], "Unfreeze: train has \"", glob,
                      "\", which matches no module of the model that has parameters; write a path "
                      "as in named_modules(), \"fc\"");
  }
  for (const detail::OwnedLayer* layer : frozen) {
    std::vector<at::Tensor> own;
    for (const at::Tensor& parameter : layer->parameters) {
      if (!trained.contains(parameter.unsafeGetTensorImpl())) {
        own.push_back(parameter);
      }
    }
    detail::freeze(own);
  }
  return static_cast<std::int64_t>(frozen.size());
}

TUTTI_INLINE std::int64_t unfreeze_from(torch::nn::Module& model, std::string_view from) {
  const auto layers = detail::owned_layers(model);
  std::int64_t count = 0;
  for (std::size_t i = detail::first_layer(model, from, layers); i < layers.size(); ++i) {
    bool was_frozen = false;
    for (const at::Tensor& parameter : layers[i].parameters) {
      was_frozen = was_frozen || !parameter.requires_grad();
    }
    detail::unfreeze(layers[i].parameters, {}, "unfreeze_from");
    count += was_frozen ? 1 : 0;
  }
  return count;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void Unfreeze::apply(Init, State& state) {
  // Said now, not after the epochs until then.
  const auto layers = detail::owned_layers(*state.model);
  static_cast<void>(detail::first_layer(*state.model, from, layers));
  functional::freeze_all_but(*state.model, train);
  std::int64_t frozen = 0;
  for (const detail::OwnedLayer& layer : layers) {
    frozen += layer.parameters.front().requires_grad() ? 0 : 1;
  }
  TUTTI_CHECK(frozen > 0,
              "Unfreeze: there is nothing to freeze, since every layer of the model is "
              "in train; name the head alone");
  find_still(state);
  state.log_metrics({{"unfreeze/frozen_layers", static_cast<double>(frozen)}});
}

TUTTI_INLINE void Unfreeze::apply(BeforeDataloader, State&) {
  for (const auto& layer : *run.still) {
    // Another policy of this kind may have given it back.
    if (!layer->parameters(/*recurse=*/false).front().requires_grad()) {
      layer->eval();
    }
  }
}

TUTTI_INLINE bool Unfreeze::is_due(const State& state) const {
  if (at.is_fraction()) {
    return state.progress().elapsed_fraction().value_or(0) >= at.value();
  }
  return state.timestamp.get(at.unit()) >= at;
}

TUTTI_INLINE void Unfreeze::give_back(State& state) {
  const auto layers = detail::owned_layers(*state.model);
  for (std::size_t i = detail::first_layer(*state.model, from, layers); i < layers.size(); ++i) {
    detail::unfreeze(layers[i].parameters, state.optimizers, name, state.sharding);
  }
  run.open = true;
  if (state.sharding != nullptr) {
    detail::follow_parameters(*state.sharding);
  } else {
    state.parameters_replaced = true;  // so that gradients of these are averaged over ranks, too
  }
  for (const auto& layer : *run.still) {
    layer->train();
  }
  find_still(state);
  std::int64_t frozen = 0;
  for (const detail::OwnedLayer& layer : layers) {
    frozen += layer.parameters.front().requires_grad() ? 0 : 1;
  }
  state.log_metrics({{"unfreeze/frozen_layers", static_cast<double>(frozen)}});
}

TUTTI_INLINE void Unfreeze::find_still(State& state) {
  run.still->clear();
  if (freeze_statistics) {
    for (const detail::OwnedLayer& layer : detail::owned_layers(*state.model)) {
      if (!layer.parameters.front().requires_grad() && layer.has_statistics()) {
        run.still->push_back(layer.module);
      }
    }
  }
}

TUTTI_INLINE void Unfreeze::prepare_load(const Archive& archive, State& state) {
  if (archive.get<bool>("open")) {
    give_back(state);
  }
}

}  // namespace tutti
