// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/parameter_groups.hpp>
#include <tutti/optim/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace torch::nn {
class Module;
}

/// Parameter groups by name, by kind and by depth, with rates, decay and schedules of their own:
///
///     .optimizer = [](torch::nn::Module& net) {
///       return optim::build(AdamW{.lr = 1e-3}, optim::layer_decay(net, 0.75));
///     }
namespace tutti::optim {

/// What a group has of its own; what is not set is the optimizer's.
struct GroupSettings {
  std::optional<double> lr{};            ///< >= 0
  double lr_scale = 1;                   ///< times lr, or the optimizer's; >= 0
  std::optional<double> weight_decay{};  ///< >= 0
  std::optional<bool>
      use_muon{};       ///< of Muon: false for AdamW's steps with adamw_lr, unless lr is set
  Schedule schedule{};  ///< in place of the run's
};

/// Parameters with settings.
struct ParameterGroup {
  std::string name;                ///< e.g. "*.bias", "no_decay", "layer_3"
  std::vector<std::string> names;  ///< the model's names of the parameters
  std::vector<at::Tensor> parameters;
  GroupSettings settings;
};

/// Parameters whose names match one of these globs, `*` any run of characters, dots included.
struct GroupRule {
  std::string glob;
  GroupSettings settings;
};

/// The model's parameters, each once, in groups: those that match the first rule, of the rest those
/// that match the second, and so on; first of all comes the group of those that match none, where
/// there are any.
///
///     optim::groups(net, {{"*.bias", {.weight_decay = 0.0}}, {"head.*", {.lr = 1e-2}}})
///
/// Throws c10::Error for a rule that has no parameter: a glob that matches nothing is a misspelt
/// one.
std::vector<ParameterGroup> groups(const torch::nn::Module& model,
                                   const std::vector<GroupRule>& rules);

/// Two groups: weights that decay as the optimizer says; and biases, scales of norms and whatever
/// else has fewer than two dimensions, is named "bias" or matches one of `also`, without decay.
/// As timm's param_groups_weight_decay.
std::vector<ParameterGroup> no_decay(const torch::nn::Module& model,
                                     const std::vector<std::string>& also = {});

/// A learning rate for every layer, `decay` times that of the next: lr_scale is decay^(last - i).
/// Within a layer, weights and what does not decay (see no_decay) are groups of their own.
///
/// Layers are told by names: what comes before the first numbered block, `blocks.0`, is one, each
/// numbered block is one (`layer2.1` counts as a block), and what comes after the first block
/// without a number of its own, such as the last norm and the head, is the last. So they are for
/// models in which parameters stand in the order of the forward pass, as those of models/ do. As
/// timm's param_groups_layer_decay for its vision transformers.
/// decay: in (0, 1].
std::vector<ParameterGroup> layer_decay(const torch::nn::Module& model, double decay,
                                        const std::vector<std::string>& also_no_decay = {});

namespace detail {

// A description's numbers with the group's settings.
template <class Hyper>
Hyper with_settings(Hyper hyper, const ParameterGroup& group) {
  const GroupSettings& s = group.settings;
  if (s.use_muon) {
    if constexpr (requires { hyper.use_muon; }) {
      hyper.use_muon = *s.use_muon;
      if (!hyper.use_muon) {
        hyper.lr = hyper.adamw_lr;
        hyper.weight_decay = hyper.adamw_weight_decay;
      }
    } else {
      TUTTI_CHECK(false, "group \"", group.name, "\": use_muon is set, and ", Rule<Hyper>::name,
                  " is not Muon.");
    }
  }
  hyper.lr = s.lr_scale * s.lr.value_or(hyper.lr);
  if (s.weight_decay) {
    if constexpr (requires { hyper.weight_decay; }) {
      hyper.weight_decay = *s.weight_decay;
    } else {
      TUTTI_CHECK(false, "group \"", group.name, "\": weight_decay is set, which ",
                  Rule<Hyper>::name, " does not have.");
    }
  }
  return hyper;
}

template <class Spec>
const auto& hyper_of(const Spec& spec) {
  if constexpr (requires { spec.optimizer; }) {  // Lookahead
    return spec.optimizer;
  } else {
    return spec;
  }
}

}  // namespace detail

/// The optimizer of the description over these groups. Throws c10::Error when a group sets a number
/// that the optimizer lacks, or one that is out of range.
template <class Spec>
auto build(const Spec& spec, const std::vector<ParameterGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> made;
  for (const ParameterGroup& one : groups) {
    made.push_back(group(one.parameters, detail::with_settings(detail::hyper_of(spec), one)));
    if (one.settings.schedule) {
      dynamic_cast<InitialLearningRate&>(made.back().options()).schedule =
          std::make_shared<const Schedule>(one.settings.schedule);
    }
  }
  return spec.build(std::move(made));
}

}  // namespace tutti::optim

#if TUTTI_BODIES
#include <tutti/optim/groups.inl.hpp>
#endif
