// SPDX-License-Identifier: Apache-2.0
#pragma once

// The same training written by hand against LibTorch, twice.

#include <ATen/ops/_fused_sgd.h>

#include "support.hpp"

namespace bench {

/// As LibTorch's examples have it: modules, torch::optim::SGD.
inline void loop_with_torch_optim(Stopwatch& data) {
  Mlp model = mlp();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(lr).momentum(momentum));
  data.start(0);
  while (auto batch = data.next()) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(batch->inputs()), batch->targets())
        .backward();
    optimizer.step();
  }
}

/// As somebody who counts microseconds has it: functions, and all weights stepped by one kernel.
inline void loop_with_fused_sgd(Stopwatch& data) {
  Mlp model = mlp();
  std::vector<at::Tensor> weights = model->parameters();
  std::vector<at::Tensor> gradients(weights.size());
  std::vector<at::Tensor> velocity;
  for (const auto& weight : weights) {
    velocity.push_back(torch::zeros_like(weight));
  }
  bool first = true;
  data.start(0);
  while (auto batch = data.next()) {
    for (auto& weight : weights) {
      weight.mutable_grad().reset();
    }
    at::Tensor x = at::linear(batch->inputs(), weights[0], weights[1]).relu();
    x = at::linear(at::linear(x, weights[2], weights[3]).relu(), weights[4], weights[5]);
    at::cross_entropy_loss(x, batch->targets()).backward();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      gradients[i] = weights[i].grad();
    }
    at::_fused_sgd_(weights, gradients, velocity, /*weight_decay=*/0.0, momentum, lr,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, first);
    first = false;
  }
}

}  // namespace bench
