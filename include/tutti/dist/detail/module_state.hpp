// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

// What a module consists of, and whether it is the same on all ranks.

namespace tutti::dist::detail {

/// A module's tensors, each once although several names may lead to it (tied weights).
struct ModuleState {
  std::vector<at::Tensor> trainable;  ///< Parameters that require a gradient.
  std::vector<std::string> names;     ///< Their names.
  std::vector<bool> sparse;           ///< Their gradients are sparse.
  std::vector<at::Tensor> frozen;     ///< The other parameters.
  std::vector<at::Tensor> buffers;
  std::string description;  ///< A line per tensor: what must be equal on all ranks.

  std::vector<at::Tensor> everything() const {
    std::vector<at::Tensor> all = trainable;
    all.insert(all.end(), frozen.begin(), frozen.end());
    all.insert(all.end(), buffers.begin(), buffers.end());
    return all;
  }
};

/// The weight of an embedding whose gradients are sparse, null for any other module.
inline const void* sparse_weight(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>();
      embedding != nullptr && embedding->options.sparse()) {
    return embedding->weight.unsafeGetTensorImpl();
  }
  const auto* bag = module.as<torch::nn::EmbeddingBagImpl>();
  return bag != nullptr && bag->options.sparse() ? bag->weight.unsafeGetTensorImpl() : nullptr;
}

inline std::unordered_set<const void*> sparse_weights(const torch::nn::Module& module) {
  std::unordered_set<const void*> weights{sparse_weight(module)};
  for (const auto& child : module.modules(/*include_self=*/false)) {
    weights.insert(sparse_weight(*child));
  }
  return weights;
}

inline ModuleState state_of(const torch::nn::Module& module) {
  ModuleState state;
  std::unordered_set<const void*> seen;
  std::ostringstream text;
  const auto is_new = [&](const char* kind, const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) {
      return false;
    }
    text << kind << " " << name << " " << tensor.dtype().name() << " " << tensor.sizes()
         << (tensor.requires_grad() || *kind == 'b' ? "" : " without gradient") << "\n";
    return true;
  };
  const auto sparse = sparse_weights(module);
  for (const auto& item : module.named_parameters()) {
    if (!is_new("parameter", item.key(), item.value())) {
      continue;
    }
    if (item.value().requires_grad()) {
      state.trainable.push_back(item.value());
      state.names.push_back(item.key());
      state.sparse.push_back(sparse.count(item.value().unsafeGetTensorImpl()) != 0);
    } else {
      state.frozen.push_back(item.value());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (is_new("buffer", item.key(), item.value())) {
      state.buffers.push_back(item.value());
    }
  }
  state.description = text.str();
  return state;
}

/// who: speaks.
inline void check_has_memory(const torch::nn::Module& module, const std::string& who) {
  const std::size_t without = ::tutti::detail::tensors_without_memory(module).size();
  TUTTI_CHECK(
      without == 0, who, ": ", without,
      " parameters and buffers of the module have no memory yet, since deferred_init() made "
      "them; call nn::materialize(module) first");
}

inline void check_trainable(const ModuleState& state) {
  TUTTI_CHECK(!state.trainable.empty(),
              "DistributedDataParallel: no parameter of the module requires a gradient, so there "
              "is nothing to average; use the module as it is");
  for (std::size_t i = 1; i < state.trainable.size(); ++i) {
    TUTTI_CHECK(state.trainable[i].device().type() == state.trainable[0].device().type(),
                "DistributedDataParallel: parameter ", state.names[0], " is on ",
                state.trainable[0].device(), " and ", state.names[i], " on ",
                state.trainable[i].device(), ", expected one kind of device; move the module");
  }
}

/// What to say of parameters that a backward pass left without gradients; "" for other errors.
///
/// error: c10d's, which has their places in state.names.
inline std::string missing_gradients(const ModuleState& state, std::string_view error) {
  if (error.find("Expected to have finished reduction") == error.npos) {
    return "";
  }
  constexpr std::string_view before = "did not receive grad for rank ";
  const std::size_t at = error.find(':', error.find(before));
  std::istringstream places(std::string(error.substr(at == error.npos ? error.size() : at + 1)));
  std::string names;
  std::size_t count = 0;
  for (std::size_t place = 0; places >> place && place < state.names.size(); ++count) {
    if (count < 4) {
      names += (count == 0 ? "" : ", ") + state.names[place];
    }
  }
  if (count > 4) {
    names += " and " + std::to_string(count - 4) + " more";
  }
  return "parameters got no gradient in a backward pass: " + (count == 0 ? "not named" : names) +
         "; expected one for every parameter that requires a gradient. Use them in the loss, "
         "freeze them, ";
}

/// Where two descriptions first differ, "" when they do not.
inline std::string first_difference(const std::string& mine, const std::string& of_rank_zero) {
  std::istringstream here(mine);
  std::istringstream there(of_rank_zero);
  std::string a;
  std::string b;
  while (true) {
    const bool more_here = static_cast<bool>(std::getline(here, a));
    const bool more_there = static_cast<bool>(std::getline(there, b));
    if (!more_here && !more_there) {
      return "";
    }
    if (!more_here || !more_there || a != b) {
      return "has [" + (more_here ? a : "nothing more") + "] where rank 0 has [" +
             (more_there ? b : "nothing more") + "]";
    }
  }
}

/// Throws on every rank, with the same words, when any rank's model differs from rank 0's.
inline void check_same_model(const ModuleState& state, Communicator& group) {
  const std::string reference = group.broadcast_bytes(state.description, 0);
  const auto differences = group.all_gather_bytes(first_difference(state.description, reference));
  for (std::size_t rank = 0; rank < differences.size(); ++rank) {
    TUTTI_CHECK(differences[rank].empty(), "DistributedDataParallel: rank ", rank, "'s model ",
                differences[rank], "; build the same model, with the same options, on every rank");
  }
}

}  // namespace tutti::dist::detail
