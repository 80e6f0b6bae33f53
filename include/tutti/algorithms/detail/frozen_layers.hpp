// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/walk.hpp>

// What the algorithms share that freeze layers and give them back.
namespace tutti::detail {

// A module that owns parameters itself.
struct OwnedLayer {
  std::string path{};
  std::shared_ptr<torch::nn::Module> module{};
  std::vector<at::Tensor> parameters{};

  // It keeps running statistics.
  [[nodiscard]] bool has_statistics() const {
    const auto buffers = module->named_buffers(/*recurse=*/false);
    return buffers.contains("running_mean") && buffers["running_mean"].defined();
  }
};

// It is `prefix` or below it.
inline bool is_at_or_below(std::string_view path, std::string_view prefix) {
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '.');
}

// The layers of `model` in the order of registration, the model itself first where it has any.
std::vector<OwnedLayer> owned_layers(torch::nn::Module& model);

// Stops the training of parameters: no gradient, also none left from before.
void freeze(const std::vector<at::Tensor>& parameters);

// Gives parameters to training. sharding: set, optimizers have its shards. Throws c10::Error when
// no optimizer has one of them.
void unfreeze(const std::vector<at::Tensor>& parameters, const surgery::Optimizers& optimizers,
              std::string_view who, const dist::Sharding* sharding = nullptr);

// The shards of a sharded model are trained where its parameters are now. Returns those that are
// not any more.
std::unordered_set<c10::TensorImpl*> follow_parameters(const dist::Sharding& sharding);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::vector<OwnedLayer> owned_layers(torch::nn::Module& model) {
  std::vector<OwnedLayer> out;
  const auto take = [&](const std::string& path, const std::shared_ptr<torch::nn::Module>& module) {
    auto parameters = module->parameters(/*recurse=*/false);
    if (!parameters.empty()) {
      out.push_back({path, module, std::move(parameters)});
    }
  };
  take("", model.shared_from_this());
  for (const surgery::Visit& visit : surgery::walk(model)) {
    take(visit.path, visit.module);
  }
  return out;
}

TUTTI_INLINE void freeze(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    parameter.set_requires_grad(false);
    parameter.mutable_grad().reset();
  }
}

TUTTI_INLINE void unfreeze(const std::vector<at::Tensor>& parameters,
                           const surgery::Optimizers& optimizers, std::string_view who,
                           const dist::Sharding* sharding) {
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor held = sharding != nullptr ? sharding->shard_of(parameter) : parameter;
    TUTTI_CHECK(optimizers.empty() || surgery::holds(optimizers, held.unsafeGetTensorImpl()), who,
                ": a parameter ", parameter.sizes(),
                " is to be trained, but no optimizer has it, since it was frozen when the "
                "optimizer was made; let the policy freeze it");
    parameter.set_requires_grad(true);
  }
}

TUTTI_INLINE std::unordered_set<c10::TensorImpl*> follow_parameters(
    const dist::Sharding& sharding) {
  std::unordered_set<c10::TensorImpl*> out;
  for (const dist::ShardedParameter& one : sharding.parameters()) {
    if (one.shard.requires_grad() && !one.whole.requires_grad()) {
      one.shard.mutable_grad().reset();
      out.insert(one.shard.unsafeGetTensorImpl());
    }
    one.shard.set_requires_grad(one.whole.requires_grad());
  }
  return out;
}

}  // namespace tutti::detail

#endif
