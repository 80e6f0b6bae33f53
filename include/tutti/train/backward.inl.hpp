// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/backward.hpp>

namespace tutti::train {

TUTTI_INLINE void Backward::operator()(const at::Tensor& loss) {
  if (!plain(loss)) {
    loss.backward();
    return;
  }
  const Forget forget{*this};
  const Edge root = torch::autograd::impl::gradient_edge(loss);
  if (!explore(root.function.get())) {
    loss.backward();
    return;
  }
  const c10::NoGradGuard no_grad;
  seed(root, loss);
  while (!ready_.empty()) {
    std::pop_heap(ready_.begin(), ready_.end());
    const std::size_t next = ready_.back().second;
    ready_.pop_back();
    call(visits_[next]);
  }
}

TUTTI_INLINE Backward::Forget::~Forget() {
  walk.visits_.clear();
  walk.successors_.clear();
  walk.numbers_.clear();
  walk.ready_.clear();
}

TUTTI_INLINE bool Backward::explore(Node* root) {
  if (number(root) == none) {
    return false;
  }
  for (std::size_t i = 0; i < visits_.size(); ++i) {
    visits_[i].first_edge = successors_.size();
    for (const auto& edge : visits_[i].node->next_edges()) {
      const std::size_t next = edge.is_valid() ? number(edge.function.get()) : none;
      if (next != none) {
        ++visits_[next].missing;
      } else if (edge.is_valid()) {
        return false;
      }
      successors_.push_back(next);
    }
  }
  return true;
}

TUTTI_INLINE std::size_t Backward::number(Node* node) {
  const auto [found, is_new] = numbers_.try_emplace(node, visits_.size());
  if (is_new) {
    if (!plain(*node)) {
      return none;
    }
    visits_.push_back({.node = node});
  }
  return found->second;
}

TUTTI_INLINE void Backward::seed(const Edge& root, const at::Tensor& loss) {
  Gradients one{at::ones_like(loss)};
  validate({root}, one, nullptr);
  deliver(visits_[0], root.input_nr, std::move(one[0]));
  ready_.emplace_back(root.function->sequence_nr(), 0);
}

TUTTI_INLINE void Backward::call(Visit& visit) {
  Node& node = *visit.node;
  node.will_release_variables();
  Gradients gradients = node(std::exchange(visit.gradients, {}));
  validate(node.next_edges(), gradients, &node);
  node.release_variables();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (const std::size_t next = successors_[visit.first_edge + i]; next != none) {
      deliver(visits_[next], node.next_edge(i).input_nr, std::move(gradients[i]));
      if (--visits_[next].missing == 0) {
        ready_.emplace_back(visits_[next].node->sequence_nr(), next);
        std::push_heap(ready_.begin(), ready_.end());
      }
    }
  }
}

TUTTI_INLINE void Backward::deliver(Visit& to, std::size_t input, at::Tensor&& gradient) {
  to.gradients.resize(to.node->num_inputs());
  at::Tensor& sum = to.gradients[input];
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (gradient.defined()) {
    sum = added(std::move(sum), gradient);
  }
}

TUTTI_INLINE at::Tensor Backward::added(at::Tensor&& sum, const at::Tensor& gradient) {
  if (sum.layout() != at::kStrided) {
    return gradient.add(sum);  // dense + sparse is what LibTorch can do
  }
  if (gradient.layout() == at::kStrided && sum.use_count() == 1 && sum.has_storage() &&
      sum.storage().use_count() == 1 && sum.is_non_overlapping_and_dense()) {
    return sum.add_(gradient);
  }
  return sum.add(gradient);
}

TUTTI_INLINE void Backward::validate(const torch::autograd::edge_list& edges, Gradients& gradients,
                                     const Node* from) {
  torch::autograd::validate_outputs(edges, gradients, [from](const std::string& message) {
    return from == nullptr ? message : "Function " + from->name() + " returned an " + message;
  });
}

}  // namespace tutti::train
