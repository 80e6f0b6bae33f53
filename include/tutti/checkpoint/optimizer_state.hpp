// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/checkpoint/detail/torch_optimizers.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/stateful.hpp>

namespace tutti::checkpoint {

namespace detail {

using torch::optim::Optimizer;

inline std::string optimizer_class(const Optimizer& optimizer) {
  const OptimizerKind* kind = torch_optimizer(optimizer);
  return kind != nullptr ? kind->name : c10::demangle(typeid(optimizer).name());
}

/// All parameters, group after group.
std::vector<at::Tensor> flat_parameters(const Optimizer& optimizer);

/// The model's name of each parameter, the first one where it has several; empty where it has none.
std::vector<std::string> parameter_names(const std::vector<at::Tensor>& parameters,
                                         const torch::nn::Module* model);

/// Where each parameter of this run lies in the archive: by name when both sides know all names,
/// else in the order of the groups.
std::vector<std::size_t> match_parameters(const std::vector<std::string>& own,
                                          const std::vector<std::string>& saved,
                                          const std::string& what);

std::string listed(const std::vector<std::int64_t>& numbers);

}  // namespace detail

/// Saves an optimizer's hyperparameters and per-parameter state.
///
/// optimizer: SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS of torch::optim, or any that derives from
/// tutti::Stateful, as all of tutti::optim do. model: gives the parameters names, so that a
/// checkpoint can be told from one of another model, and loaded when the order of the parameters
/// changed; null: order only. Throws c10::Error naming the class when it is none of these.
void save_optimizer(const torch::optim::Optimizer& optimizer, Archive& archive,
                    const torch::nn::Module* model = nullptr);

/// Restores what save_optimizer() saved, hyperparameters such as the learning rate included.
///
/// optimizer: of the saved class, with as many groups of the same sizes. State tensors go to their
/// parameter's device. Parameters are matched by name where both sides know all names; a Stateful
/// optimizer, and LBFGS, whose state is of all of them together, need them in the saved order.
/// Throws c10::Error saying what differs; a torch::optim one is then unchanged.
void load_optimizer(torch::optim::Optimizer& optimizer, const Archive& archive,
                    const torch::nn::Module* model = nullptr);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/optimizer_state.inl.hpp>
#endif
