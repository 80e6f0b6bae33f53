// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/optimizers.hpp>

#include <torch/nn/module.h>

/// How parameters that surgery adds find the optimizer group of what they stand for.
namespace tutti::surgery::detail {

/// One module that takes the place of another.
struct Swap {
  std::shared_ptr<torch::nn::Module> before;
  std::shared_ptr<torch::nn::Module> after;
  std::string path;
};

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// Modules or tensors by their address.
using Addresses = std::unordered_set<const void*>;

inline std::string_view last_name(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0: the whole name
}

/// A vector (bias, normalisation weight) or a matrix (everything that is multiplied with).
inline bool is_vector(const at::Tensor& parameter) {
  return parameter.dim() <= 1;
}

/// The distinct parameters of a model as they are, or as they will be once `swaps` are done.
class Census {
 public:
  explicit Census(torch::nn::Module& root, const std::vector<Swap>& swaps = {}) {
    descend(root, "", swaps);
  }

  [[nodiscard]] const std::vector<NamedParameter>& all() const { return all_; }
  [[nodiscard]] bool contains(const at::Tensor& parameter) const {
    return known_.contains(parameter.unsafeGetTensorImpl());
  }

 private:
  void descend(torch::nn::Module& module, const std::string& prefix,
               const std::vector<Swap>& swaps);

  std::vector<NamedParameter> all_;
  Addresses known_;
  Addresses modules_;
};

/// A parameter that surgery adds, and the one whose part it takes.
struct Addition {
  NamedParameter parameter;  ///< name from the root of the model
  at::Tensor origin;         ///< of the old module; undefined when it had nothing comparable
  bool inherits = false;     ///< the origin leaves the model, and this one has its role
  std::vector<std::size_t> places{};  ///< the optimizers' groups that it joins, see Places
};

/// How well `old` answers for a new parameter: same name, then same role and kind, then kind.
int likeness(std::string_view name, const at::Tensor& tensor, const NamedParameter& old);

std::vector<Addition> additions(const std::vector<Swap>& swaps, const Census& before,
                                const Census& after);

/// Which parameter group of which optimizer holds which parameter, and which ones a new parameter
/// joins. A group is named by its number in the order of the optimizers and their groups.
class Places {
 public:
  explicit Places(const Optimizers& optimizers);

  /// Where `added` goes; empty when it stands for a parameter that no optimizer trains. Throws
  /// c10::Error when there are several groups and nothing tells them apart.
  [[nodiscard]] std::vector<std::size_t> of(const Addition& added, const Census& model) const;

  /// Adds a parameter to these groups.
  void add(const at::Tensor& parameter, const std::vector<std::size_t>& groups) {
    for (const std::size_t group : groups) {
      places_[group].params->push_back(parameter);
    }
  }

 private:
  struct Place {
    std::vector<at::Tensor>* params = nullptr;
    Addresses held;

    [[nodiscard]] bool holds(const at::Tensor& parameter) const {
      return held.contains(parameter.unsafeGetTensorImpl());
    }
  };

  // The group that most parameters of the model with the same role and kind are in.
  [[nodiscard]] std::size_t of_its_kind(const NamedParameter& added, const Census& model) const;

  std::vector<Place> places_;
};

/// Takes parameters that left the model, and their state, out of the optimizers.
void remove_parameters(const Optimizers& optimizers, const Census& before, const Census& after);

}  // namespace tutti::surgery::detail

#if TUTTI_BODIES

namespace tutti::surgery::detail {

TUTTI_INLINE void Census::descend(torch::nn::Module& module, const std::string& prefix,
                                  const std::vector<Swap>& swaps) {
  if (!modules_.insert(&module).second) {
    return;
  }
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    if (known_.insert(parameter.value().unsafeGetTensorImpl()).second) {
      all_.push_back({prefix + parameter.key(), parameter.value()});
    }
  }
  for (const auto& child : module.named_children()) {
    if (child.value() == nullptr) {
      continue;
    }
    torch::nn::Module* next = child.value().get();
    for (const Swap& swap : swaps) {
      if (swap.before == child.value()) {
        next = swap.after.get();
      }
    }
    descend(*next, prefix + child.key() + ".", swaps);
  }
}

TUTTI_INLINE int likeness(std::string_view name, const at::Tensor& tensor,
                          const NamedParameter& old) {
  const bool same_kind = is_vector(tensor) == is_vector(old.tensor);
  if (name == old.name && same_kind) {
    return 3;
  }
  if (!same_kind) {
    return 0;
  }
  return last_name(name) == last_name(old.name) ? 2 : 1;
}

TUTTI_INLINE std::vector<Addition> additions(const std::vector<Swap>& swaps, const Census& before,
                                             const Census& after) {
  std::vector<Addition> result;
  Addresses done;
  for (const Swap& swap : swaps) {
    const Census old(*swap.before);
    const Census fresh(*swap.after);
    for (const NamedParameter& parameter : fresh.all()) {
      if (before.contains(parameter.tensor) || !after.contains(parameter.tensor) ||
          !done.insert(parameter.tensor.unsafeGetTensorImpl()).second) {
        continue;
      }
      Addition addition;
      addition.parameter = {swap.path + "." + parameter.name, parameter.tensor};
      int best = 0;
      for (const NamedParameter& candidate : old.all()) {
        const int score = likeness(parameter.name, parameter.tensor, candidate);
        if (score > best) {
          best = score;
          addition.origin = candidate.tensor;
          addition.inherits = score >= 2 && !after.contains(candidate.tensor);
        }
      }
      result.push_back(std::move(addition));
    }
  }
  return result;
}

TUTTI_INLINE Places::Places(const Optimizers& optimizers) {
  for (torch::optim::Optimizer* optimizer : optimizers) {
    for (torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      Place& place = places_.emplace_back();
      place.params = &group.params();
      for (const at::Tensor& parameter : group.params()) {
        place.held.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
}

TUTTI_INLINE std::vector<std::size_t> Places::of(const Addition& added, const Census& model) const {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (added.origin.defined() && places_[i].holds(added.origin)) {
      result.push_back(i);
    }
  }
  if (result.empty() && !added.inherits && !places_.empty()) {
    result.push_back(of_its_kind(added.parameter, model));
  }
  return result;
}

TUTTI_INLINE std::size_t Places::of_its_kind(const NamedParameter& added,
                                             const Census& model) const {
  if (places_.size() == 1) {
    return 0;
  }
  for (const int enough : {2, 1}) {
    std::size_t best = 0;
    int most = 0;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      int votes = 0;
      for (const NamedParameter& other : model.all()) {
        votes +=
            likeness(added.name, added.tensor, other) >= enough && places_[i].holds(other.tensor);
      }
      if (votes > most) {
        most = votes;
        best = i;
      }
    }
    if (most > 0) {
      return best;
    }
  }
  TUTTI_CHECK(false, "surgery adds the parameter ", added.name, ", and none of the ",
              places_.size(), " optimizer groups holds a parameter like it; do the surgery ",
              "before making the optimizer, or without it and add the parameter to a group.");
}

TUTTI_INLINE void remove_parameters(const Optimizers& optimizers, const Census& before,
                                    const Census& after) {
  for (torch::optim::Optimizer* optimizer : optimizers) {
    for (torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      std::erase_if(group.params(), [&](const at::Tensor& parameter) {
        const bool gone = before.contains(parameter) && !after.contains(parameter);
        if (gone) {
          optimizer->state().erase(parameter.unsafeGetTensorImpl());
        }
        return gone;
      });
    }
  }
}

}  // namespace tutti::surgery::detail

#endif
