// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/stateful.hpp>

namespace tutti::checkpoint::detail {

/// The fields of LibTorch's optimizer structs, by name, in the order of their declaration; the
/// names are those of PyTorch's state_dict.
template <class Visit>
void fields(torch::optim::SGDOptions& o, Visit&& v) {
  v("lr", o.lr()), v("momentum", o.momentum()), v("dampening", o.dampening());
  v("weight_decay", o.weight_decay()), v("nesterov", o.nesterov());
}
template <class Visit>
void fields(torch::optim::SGDParamState& s, Visit&& v) {
  v("momentum_buffer", s.momentum_buffer());
}
template <class Visit>
void fields(torch::optim::AdamOptions& o, Visit&& v) {
  v("lr", o.lr()), v("betas", o.betas()), v("eps", o.eps());
  v("weight_decay", o.weight_decay()), v("amsgrad", o.amsgrad());
}
template <class Visit>
void fields(torch::optim::AdamParamState& s, Visit&& v) {
  v("step", s.step()), v("exp_avg", s.exp_avg()), v("exp_avg_sq", s.exp_avg_sq());
  v("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Visit>
void fields(torch::optim::AdamWOptions& o, Visit&& v) {
  v("lr", o.lr()), v("betas", o.betas()), v("eps", o.eps());
  v("weight_decay", o.weight_decay()), v("amsgrad", o.amsgrad());
}
template <class Visit>
void fields(torch::optim::AdamWParamState& s, Visit&& v) {
  v("step", s.step()), v("exp_avg", s.exp_avg()), v("exp_avg_sq", s.exp_avg_sq());
  v("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Visit>
void fields(torch::optim::RMSpropOptions& o, Visit&& v) {
  v("lr", o.lr()), v("alpha", o.alpha()), v("eps", o.eps()), v("weight_decay", o.weight_decay());
  v("momentum", o.momentum()), v("centered", o.centered());
}
template <class Visit>
void fields(torch::optim::RMSpropParamState& s, Visit&& v) {
  v("step", s.step()), v("square_avg", s.square_avg()), v("momentum_buffer", s.momentum_buffer());
  v("grad_avg", s.grad_avg());
}
template <class Visit>
void fields(torch::optim::AdagradOptions& o, Visit&& v) {
  v("lr", o.lr()), v("lr_decay", o.lr_decay()), v("weight_decay", o.weight_decay());
  v("initial_accumulator_value", o.initial_accumulator_value()), v("eps", o.eps());
}
template <class Visit>
void fields(torch::optim::AdagradParamState& s, Visit&& v) {
  v("step", s.step()), v("sum", s.sum());
}
template <class Visit>
void fields(torch::optim::LBFGSOptions& o, Visit&& v) {
  v("lr", o.lr()), v("max_iter", o.max_iter()), v("max_eval", o.max_eval());
  v("tolerance_grad", o.tolerance_grad()), v("tolerance_change", o.tolerance_change());
  v("history_size", o.history_size()), v("line_search_fn", o.line_search_fn());
}
template <class Visit>
void fields(torch::optim::LBFGSParamState& s, Visit&& v) {
  v("func_evals", s.func_evals()), v("n_iter", s.n_iter()), v("t", s.t()),
      v("prev_loss", s.prev_loss());
  v("d", s.d()), v("H_diag", s.H_diag()), v("prev_flat_grad", s.prev_flat_grad());
  v("old_dirs", s.old_dirs()), v("old_stps", s.old_stps()), v("ro", s.ro()), v("al", s.al());
}

/// Puts fields into an archive. What is undefined or empty is left out, as PyTorch does.
struct FieldSaver {
  Archive& archive;

  template <class T>
  void operator()(const char* name, const T& value) const {
    archive.put(name, value);
  }
  void operator()(const char* name, const at::Tensor& value) const {
    if (value.defined()) {
      archive.put(name, value.detach());
    }
  }
  void operator()(const char* name, const std::tuple<double, double>& value) const {
    archive.put(name, std::vector<double>{std::get<0>(value), std::get<1>(value)});
  }
  void operator()(const char* name, const std::vector<at::Tensor>& value) const;
  void operator()(const char* name, const std::deque<at::Tensor>& value) const {
    (*this)(name, std::vector<at::Tensor>(value.begin(), value.end()));
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& value) const {
    if (value.has_value()) {
      (*this)(name, *value);
    }
  }

 private:
  // An undefined element keeps its place: LBFGS leaves most of `al` unset.
  static void at(Archive& list, std::size_t i, const at::Tensor& tensor);
};

/// Takes fields from an archive; tensors go to `device` and are copies. Single tensors have the
/// shape `sizes` when it is given.
struct FieldLoader {
  const Archive& archive;
  at::Device device = at::kCPU;
  std::optional<at::IntArrayRef> sizes = std::nullopt;

  template <class T>
  void operator()(const char* name, T& value) const {
    value = archive.get<T>(name);
  }
  void operator()(const char* name, at::Tensor& value) const {
    value = archive.contains(name) ? own(archive.tensor(name)) : at::Tensor();
    TUTTI_CHECK(!sizes.has_value() || !value.defined() || value.sizes() == *sizes, "checkpoint: '",
                archive.path(), "/", name, "' is ", value.sizes(), ", the parameter ", *sizes);
  }
  void operator()(const char* name, std::tuple<double, double>& value) const;
  void operator()(const char* name, std::vector<at::Tensor>& value) const;
  void operator()(const char* name, std::deque<at::Tensor>& value) const {
    std::vector<at::Tensor> list;
    (*this)(name, list);
    value.assign(list.begin(), list.end());
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) const {
    value.reset();
    if (archive.contains(name)) {
      (*this)(name, value.emplace());
    }
  }

 private:
  at::Tensor own(const at::Tensor& tensor) const {
    return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
};

/// The two structs of one of LibTorch's optimizers, seen through one interface.
struct OptimizerKind {
  const char* name;
  const std::type_info& type;
  void (*save_options)(const torch::optim::OptimizerOptions&, Archive&);
  void (*save_state)(const torch::optim::OptimizerParamState&, Archive&);
  std::unique_ptr<torch::optim::OptimizerOptions> (*load_options)(const Archive&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*load_state)(const Archive&,
                                                                   const at::Tensor&);
};

template <class Optimizer, class Options, class State>
OptimizerKind kind(const char* name) {
  return {
      name,
      typeid(Optimizer),
      [](const torch::optim::OptimizerOptions& options, Archive& archive) {
        Options copy = static_cast<const Options&>(options);
        fields(copy, FieldSaver{archive});
      },
      [](const torch::optim::OptimizerParamState& state, Archive& archive) {
        State copy = static_cast<const State&>(state);
        fields(copy, FieldSaver{archive});
      },
      [](const Archive& archive) -> std::unique_ptr<torch::optim::OptimizerOptions> {
        auto options = std::make_unique<Options>(1.0);
        fields(*options, FieldLoader{archive});
        return options;
      },
      [](const Archive& archive,
         const at::Tensor& parameter) -> std::unique_ptr<torch::optim::OptimizerParamState> {
        auto state = std::make_unique<State>();
        FieldLoader loader{archive, parameter.device()};
        if (!std::is_same_v<Optimizer,
                            torch::optim::LBFGS>) {  // keeps one flat vector for all parameters
          loader.sizes = parameter.sizes();
        }
        fields(*state, loader);
        return state;
      },
  };
}

/// The entry for exactly this class, or null: a class derived from one of them may hold more.
const OptimizerKind* torch_optimizer(const torch::optim::Optimizer& optimizer);

}  // namespace tutti::checkpoint::detail

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

/// Refuses an optimizer that save_optimizer() cannot save, as that does.
void check_saves(const torch::optim::Optimizer& optimizer);

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
