// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/sharding.hpp>

namespace tutti::detail {

using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;

// How the model is sharded, where a rank has only parts of its parameters; null: they are whole.
const dist::Sharding* parts_of(const State& state);

// This rank's part of what is shaped as a parameter of the model; `tensor` where it is none.
at::Tensor part_of(const dist::Sharding& sharding, const at::Tensor& parameter,
                   const at::Tensor& tensor);

// A module's parameters, only those that require a gradient when `trainable`, and its buffers, each
// memory once: tied tensors appear under their first name. sharding: set, its shards stand for the
// parameters.
NamedTensorList weights_of(const torch::nn::Module& module, bool trainable,
                           const dist::Sharding* sharding = nullptr);

// All parameters and buffers, tied ones under each of their names.
std::map<std::string, at::Tensor> tensors_by_name(const torch::nn::Module& module,
                                                  const dist::Sharding* sharding = nullptr);

// The CPU's fused SGD kernel may walk through both tensors side by side.
inline bool side_by_side(const at::Tensor& average, const at::Tensor& weight) {
  return average.is_cpu() && weight.is_cpu() && average.scalar_type() == weight.scalar_type() &&
         average.is_non_overlapping_and_dense() && average.strides() == weight.strides();
}

// average = smoothing * average + (1 - smoothing) * weight, for lists of floating tensors.
void blend(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& weights,
           double smoothing);

// Pairs of averages and weights, the floating ones apart.
class AverageLists {
 public:
  // copied: the average is always the weight itself.
  void add(const at::Tensor& average, const at::Tensor& weight, bool copied = false) {
    Lists& lists = copied ? copied_ : average.is_floating_point() ? floating_ : whole_;
    lists.averages.push_back(average);
    lists.weights.push_back(weight);
  }

  // Sets apart, when all have been added, the buffers and frozen parameters that have infinities,
  // such as a mask; parameters in training are taken to have none. Waits for a device once.
  void find_infinities();

  // One step. average_integers: also of tensors that are not floating, truncated; else these are
  // copied.
  void update(double smoothing, bool average_integers) const;

 private:
  struct Lists {
    std::vector<at::Tensor> averages;
    std::vector<at::Tensor> weights;
  };
  Lists floating_;
  Lists infinite_;  // floating, of which blend() would make NaN: infinity minus infinity
  Lists whole_;     // integers and bools
  Lists copied_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE const dist::Sharding* parts_of(const State& state) {
  return state.sharding != nullptr && !state.sharding->keeps_whole() ? state.sharding : nullptr;
}

TUTTI_INLINE at::Tensor part_of(const dist::Sharding& sharding, const at::Tensor& parameter,
                                const at::Tensor& tensor) {
  for (const dist::ShardedParameter& one : sharding.parameters()) {
    if (one.whole.is_same(parameter)) {
      return sharding.part_of(one, tensor);
    }
  }
  return tensor;
}

TUTTI_INLINE NamedTensorList weights_of(const torch::nn::Module& module, bool trainable,
                                        const dist::Sharding* sharding) {
  NamedTensorList out;
  std::unordered_set<const void*> seen;
  const auto take = [&](const auto& items, bool parameters) {
    for (const auto& item : items) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || (parameters && trainable && !tensor.requires_grad())) {
        continue;
      }
      // A sharded parameter may have no memory; no two have the same one.
      const at::Tensor own = sharding != nullptr ? sharding->shard_of(tensor) : tensor;
      const bool has_memory = own.is_same(tensor) && InitTape::of(tensor) == nullptr;
      const void* const place = has_memory ? tensor.const_data_ptr() : own.unsafeGetTensorImpl();
      if (tensor.numel() == 0 || seen.insert(place).second) {
        out.emplace_back(item.key(), own);
      }
    }
  };
  take(module.named_parameters(), true);
  take(module.named_buffers(), false);
  return out;
}

TUTTI_INLINE std::map<std::string, at::Tensor> tensors_by_name(const torch::nn::Module& module,
                                                               const dist::Sharding* sharding) {
  std::map<std::string, at::Tensor> out;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      out.emplace(item.key(),
                  sharding != nullptr ? sharding->shard_of(item.value()) : item.value());
    }
  }
  return out;
}

TUTTI_INLINE void blend(const std::vector<at::Tensor>& averages,
                        const std::vector<at::Tensor>& weights, double smoothing) {
  if (averages.empty()) {
    return;
  }
  bool one_kernel = smoothing >= 0.5;
  for (std::size_t i = 0; one_kernel && i < averages.size(); ++i) {
    one_kernel = side_by_side(averages[i], weights[i]);
  }
  if (one_kernel) {
    // A step of SGD with learning rate 1 - smoothing on the gradient average - weight: weight decay
    // of 1 gives the average, and maximize the minus. It is the CPU's only multi-tensor kernel.
    at::_ops::_fused_sgd_::call(averages, weights, {}, /*weight_decay=*/1.0, /*momentum=*/0.0,
                                /*lr=*/1.0 - smoothing, /*dampening=*/0.0, /*nesterov=*/false,
                                /*maximize=*/true, /*is_first_step=*/false, std::nullopt,
                                std::nullopt);
  } else {
    at::_ops::_foreach_lerp__Scalar::call(averages, weights, 1.0 - smoothing);
  }
}

TUTTI_INLINE void AverageLists::find_infinities() {
  const c10::AutoGradMode no_grad(false);
  const std::size_t count = floating_.weights.size();
  std::vector<std::size_t> asked;
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor& weight = floating_.weights[i];
    const bool has_values = InitTape::of(weight) == nullptr;
    if (!weight.requires_grad() && weight.numel() > 0 && has_values) {
      asked.push_back(i);
      tensors.insert(tensors.end(), {floating_.averages[i], weight});
    }
  }
  if (asked.empty()) {
    return;
  }
  std::vector<at::Tensor> largest =
      at::_foreach_norm(tensors, std::numeric_limits<double>::infinity());
  for (at::Tensor& one : largest) {
    one = one.to(largest.front().device(), at::kFloat);
  }
  const at::Tensor known = at::stack(largest).isinf().view({-1, 2}).any(1).cpu();
  std::vector<bool> infinite(count, false);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    infinite[asked[i]] = known.const_data_ptr<bool>()[i];
  }
  Lists rest;
  for (std::size_t i = 0; i < count; ++i) {
    Lists& lists = infinite[i] ? infinite_ : rest;
    lists.averages.push_back(std::move(floating_.averages[i]));
    lists.weights.push_back(std::move(floating_.weights[i]));
  }
  floating_ = std::move(rest);
}

TUTTI_INLINE void AverageLists::update(double smoothing, bool average_integers) const {
  const c10::AutoGradMode no_grad(false);
  blend(floating_.averages, floating_.weights, smoothing);
  for (std::size_t i = 0; i < infinite_.averages.size(); ++i) {
    const at::Tensor& average = infinite_.averages[i];
    const at::Tensor& now = infinite_.weights[i];
    if (smoothing == 0) {
      average.copy_(now);
    } else if (smoothing != 1) {
      const at::Tensor mixed = average.mul(smoothing).add_(now.mul(1 - smoothing));
      average.copy_(average.where(average.eq(now), mixed));  // what is equal stays so
    }
  }
  for (std::size_t i = 0; i < whole_.averages.size(); ++i) {
    const at::Tensor& average = whole_.averages[i];
    const at::Tensor& now = whole_.weights[i];
    average.copy_(average_integers ? average.mul(smoothing).add_(now.mul(1 - smoothing)) : now);
  }
  for (std::size_t i = 0; i < copied_.averages.size(); ++i) {
    copied_.averages[i].copy_(copied_.weights[i]);
  }
}

}  // namespace tutti::detail

#endif
