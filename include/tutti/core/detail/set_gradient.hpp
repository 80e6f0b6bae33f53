// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti::detail {

// The owner of `node`, made by new. Nodes of our own are classes, for torch::autograd::Function
// takes seconds to compile. Newer LibTorch counts the owners of a node inside it.
template <class Node, class Owner = std::decay_t<decltype(torch::autograd::Edge::function)>>
Owner own_node(Node* node) {
  if constexpr (std::is_same_v<Owner, std::shared_ptr<torch::autograd::Node>>) {
    return Owner(node, [](auto* it) { deleteNode(it); });
  } else {
    return Owner::unsafe_steal_from_new(node);
  }
}

// Makes `node`, made by new, the one that computes gradients from that of `out`.
template <class Node>
void set_gradient(const at::Tensor& out, Node* node) {
  auto owner = own_node(node);
  const auto number = owner->add_input_metadata(out);
  torch::autograd::impl::set_gradient_edge(out, {std::move(owner), number});
}

}  // namespace tutti::detail
