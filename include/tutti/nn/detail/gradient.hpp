// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti::detail {

// Makes `node`, made by new, the one that computes gradients from that of `out`. Nodes of our own
// are classes, for torch::autograd::Function takes seconds to compile. Newer LibTorch counts the
// owners of a node inside it.
template <class Node, class Owner = std::decay_t<decltype(torch::autograd::Edge::function)>>
void set_gradient(const at::Tensor& out, Node* node) {
  Owner owner;
  if constexpr (std::is_same_v<Owner, std::shared_ptr<torch::autograd::Node>>) {
    owner = Owner(node, [](auto* it) { deleteNode(it); });
  } else {
    owner = Owner::unsafe_steal_from_new(node);
  }
  torch::autograd::impl::set_gradient_edge(out, {owner, owner->add_input_metadata(out)});
}

// A loop of our own may read this tensor: its numbers are in the CPU's memory as they are (no sign
// still to be turned, no zeros that have none), and it has no tangent.
inline bool is_in_host_memory(const at::Tensor& x) {
  return x.is_cpu() && x.layout() == at::kStrided && x.has_storage() && !x.is_neg() &&
         !x._is_zerotensor() && !x._fw_grad(0).defined();
}

inline bool is_host_floats(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && is_in_host_memory(x);
}

// It may take this gradient: likewise, and no gradient of what it gives is wanted.
inline bool is_host_gradient(const at::Tensor& dy) {
  return !at::GradMode::is_enabled() && is_host_floats(dy);
}

}  // namespace tutti::detail
