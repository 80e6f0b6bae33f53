// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/backbone_finetuning.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>

#include <tutti/algorithms/detail/frozen_layers.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

// The parameters of the layers of the backbone that are frozen at first; without_statistics: but
// not those of batch normalisation.
TUTTI_INLINE std::vector<at::Tensor> of_backbone(torch::nn::Module& model, std::string_view path,
                                                 bool without_statistics) {
  std::vector<at::Tensor> out;
  std::unordered_set<const void*> outside;
  const auto layers = owned_layers(model);
  for (const OwnedLayer& layer : layers) {
    if (!is_at_or_below(layer.path, path)) {
      for (const at::Tensor& parameter : layer.parameters) {
        outside.insert(parameter.unsafeGetTensorImpl());  // shared ones are trained
      }
    }
  }
  bool found = false;
  for (const OwnedLayer& layer : layers) {
    if (is_at_or_below(layer.path, path)) {
      found = true;
      for (const at::Tensor& parameter : layer.parameters) {
        if (!(without_statistics && layer.has_statistics()) &&
            outside.insert(parameter.unsafeGetTensorImpl()).second) {
          out.push_back(parameter);
        }
      }
    }
  }
  std::string names;
  for (const auto& child : model.named_children()) {
    names += (names.empty() ? "" : ", ") + child.key();
  }
  TUTTI_CHECK_VALUE(found, "BackboneFinetuning: backbone is \"", path,
                    "\", and the model has no module of that path with parameters; its children "
                    "are ",
                    names);
  return out;
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void BackboneFinetuning::apply(Init, State& state) {
  const auto frozen = detail::of_backbone(*state.model, backbone, train_bn);
  detail::freeze(frozen);
  std::unordered_set<const void*> own;
  for (const at::Tensor& parameter : detail::of_backbone(*state.model, backbone, true)) {
    own.insert(parameter.unsafeGetTensorImpl());
  }
  run.groups->clear();
  for (std::size_t o = 0; o < state.optimizers.size(); ++o) {
    torch::optim::Optimizer& optimizer = *state.optimizers[o];
    const std::size_t count = optimizer.param_groups().size();
    for (std::size_t g = 0; g < count; ++g) {
      std::vector<at::Tensor> moved;
      std::erase_if(optimizer.param_groups()[g].params(), [&](const at::Tensor& parameter) {
        const bool moves = own.contains(parameter.unsafeGetTensorImpl());
        if (moves) {
          moved.push_back(parameter);
        }
        return moves;
      });
      if (!moved.empty()) {
        run.groups->push_back({o, g, optimizer.param_groups().size()});
        // add_param_group may lose the options: LibTorch 2.15 has its own optimizers' alone.
        auto& groups = optimizer.param_groups();
        groups.emplace_back(std::move(moved), groups[g].options().clone());
      }
    }
  }
  TUTTI_CHECK(!run.groups->empty(),
              "BackboneFinetuning: no optimizer has a parameter of the backbone; let the policy "
              "freeze it, and give the optimizer all parameters");
  find_still(state);
}

TUTTI_INLINE void BackboneFinetuning::apply(BeforeDataloader, State&) {
  for (const auto& layer : *run.still) {
    layer->eval();
  }
}

TUTTI_INLINE void BackboneFinetuning::apply(EpochEnd, State& state) {
  if (!run.open && state.timestamp.epoch >= unfreeze_backbone_at_epoch) {
    give_back(state);
  }
  if (run.open) {
    set_rates(state);
    const Run::Group& first = run.groups->front();
    state.log_metrics(
        {{"backbone_finetuning/lr",
          state.optimizers[first.optimizer]->param_groups()[first.own].options().get_lr()}});
  }
}

TUTTI_INLINE void BackboneFinetuning::give_back(State& state) {
  detail::unfreeze(detail::of_backbone(*state.model, backbone, true), state.optimizers, name,
                   state.sharding);
  run.open = true;
  if (state.sharding != nullptr) {
    detail::follow_parameters(*state.sharding);
  } else {
    state.parameters_replaced = true;  // so that gradients of these are averaged over ranks, too
  }
}

TUTTI_INLINE void BackboneFinetuning::find_still(State& state) {
  run.still->clear();
  if (!train_bn) {
    for (const detail::OwnedLayer& layer : detail::owned_layers(*state.model)) {
      if (detail::is_at_or_below(layer.path, backbone) && layer.has_statistics()) {
        run.still->push_back(layer.module);
      }
    }
  }
}

TUTTI_INLINE void BackboneFinetuning::set_rates(State& state) const {
  const auto epochs = static_cast<double>(state.timestamp.epoch - unfreeze_backbone_at_epoch);
  const double grown = std::pow(growth, std::max(epochs, 0.0));
  for (const Run::Group& group : *run.groups) {
    std::size_t before = 0;  // initial_lrs are those of all optimizers
    for (std::size_t o = 0; o < group.optimizer; ++o) {
      before += state.optimizers[o]->param_groups().size();
    }
    auto& all = state.optimizers[group.optimizer]->param_groups();
    const auto rate = [&](double of_the_others) {
      const double first =
          backbone_initial_lr ? *backbone_initial_lr : backbone_initial_ratio_lr * of_the_others;
      return should_align ? std::min(first * grown, of_the_others) : first * grown;
    };
    const double now = all[group.of_the_others].options().get_lr();
    if (before + group.own < state.initial_lrs.size()) {
      // What the schedule multiplies; and the rate that it has set for the next batch.
      const double base = state.initial_lrs[before + group.of_the_others];
      const double own = rate(base);
      state.initial_lrs[before + group.own] = own;
      all[group.own].options().set_lr(base == 0 ? own : own * (now / base));
    } else {
      all[group.own].options().set_lr(rate(now));
    }
  }
}

TUTTI_INLINE void BackboneFinetuning::prepare_load(const Archive& archive, State& state) {
  if (archive.get<bool>("open")) {
    give_back(state);
  }
}

}  // namespace tutti
