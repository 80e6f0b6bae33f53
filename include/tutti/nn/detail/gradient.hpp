#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti::detail {

// Makes `node`, made by new, the one that computes gradients from that of `out`. Nodes of our own
// are classes, for torch::autograd::Function takes seconds to compile.
inline void set_gradient(const at::Tensor& out, torch::autograd::Node* node) {
  const std::shared_ptr<torch::autograd::Node> shared(node, torch::autograd::deleteNode);
  torch::autograd::impl::set_gradient_edge(out, {shared, shared->add_input_metadata(out)});
}

}  // namespace tutti::detail
