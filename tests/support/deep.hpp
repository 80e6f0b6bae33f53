// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <tutti/core/batch.hpp>

/// Three layers and statistics, trained for a mean squared error.
struct Deep : torch::nn::Module {
  Deep() {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    second = register_module("second", torch::nn::Linear(6, 5));
    last = register_module("last", torch::nn::Linear(5, 2));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return last(second(norm(first(batch.inputs())).relu()).relu());
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

/// One whose weights are those of the seed.
inline std::shared_ptr<Deep> deep(std::uint64_t seed = 1) {
  at::manual_seed(seed);
  return std::make_shared<Deep>();
}
