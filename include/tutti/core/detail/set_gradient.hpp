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

}  // namespace tutti::detail
