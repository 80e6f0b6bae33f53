// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <tutti/config.hpp>

namespace tutti::train {

/// `loss.backward()`, without what LibTorch's engine does for graphs that several threads walk.
///
///     train::Backward backward;  // keeps its memory from call to call
///     backward(loss);
///
/// The engine restores the caller's thread-local state around every node, takes two locks and posts
/// it to a queue; in a step of small tensors that is over a third. A graph on the CPU is walked by
/// the calling thread, which has that state already. Here its nodes are called in the engine's
/// order, with the engine's own checks, and sums of gradients are taken in that order too: the
/// gradients are the same bit for bit.
///
/// What the engine alone can do is left to it: nodes on other devices, hooks (of tensors and of
/// nodes, and so DDP), retain_grad(), anomaly mode, and every loss that it refuses. One difference
/// is left: a node of your own that calls `Engine::queue_callback` or asks for the current graph
/// task finds none; `TrainerOptions::autograd_engine` is for that.
///
/// Source: torch/csrc/autograd/engine.cpp, `Engine::execute` with accumulate_grad and neither
/// keep_graph nor create_graph.
class Backward {
 public:
  /// Adds the gradients of `loss` to those of the leaves and frees the graph's saved tensors.
  /// loss: a defined scalar that requires gradients. Errors are those of `loss.backward()`.
  void operator()(const at::Tensor& loss);

 private:
  using Edge = torch::autograd::Edge;
  using Node = torch::autograd::Node;
  using Gradients = torch::autograd::variable_list;

  struct Visit {
    Node* node = nullptr;        // alive as long as the loss is
    std::size_t first_edge = 0;  // in successors_
    int missing = 0;             // edges into it that have not delivered yet
    Gradients gradients{};       // of its outputs, those that have
  };

  // Nothing of a graph stays, whichever way the walk ends.
  struct Forget {
    ~Forget();
    Backward& walk;
  };

  static bool plain(const at::Tensor& loss) {
    return loss.defined() && loss.requires_grad() && loss.is_cpu() && loss.numel() == 1 &&
           loss.layout() == at::kStrided && loss.is_floating_point() &&
           !torch::autograd::AnomalyMode::is_enabled();
  }

  static bool plain(Node& node) {
    return node.pre_hooks().empty() && node.post_hooks().empty() &&
           node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty() &&
           node.device().is_cpu();
  }

  // Numbers all nodes below the root and counts the edges into each; false: not for this walk.
  bool explore(Node* root);

  std::size_t number(Node* node);

  void seed(const Edge& root, const at::Tensor& loss);

  void call(Visit& visit);

  static void deliver(Visit& to, std::size_t input, at::Tensor&& gradient);

  // In place where nobody else sees the memory.
  static at::Tensor added(at::Tensor&& sum, const at::Tensor& gradient);

  static void validate(const torch::autograd::edge_list& edges, Gradients& gradients,
                       const Node* from);

  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  std::vector<Visit> visits_;
  std::vector<std::size_t> successors_;  // the visits behind all edges, node by node
  std::unordered_map<Node*, std::size_t> numbers_;
  std::vector<std::pair<std::uint64_t, std::size_t>> ready_;  // a heap: the latest made comes first
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/backward.inl.hpp>
#endif
