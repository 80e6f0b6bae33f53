// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <tutti/core/batch.hpp>

/// A model and data small enough for tests of the loop.
namespace tiny {

/// Two linear layers with dropout between them; the loss is the mean squared error.
struct Net : torch::nn::Module {
  explicit Net(double drop = 0.0) {
    in = register_module("in", torch::nn::Linear(4, 8));
    dropout = register_module("dropout", torch::nn::Dropout(drop));
    out = register_module("out", torch::nn::Linear(8, 2));
  }
  tutti::Outputs forward(const tutti::Batch& batch) {
    return out->forward(dropout->forward(in->forward(batch.inputs()).tanh()));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    return (outputs.tensor() - batch.targets()).pow(2).mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

/// A Net whose weights depend on `seed` alone.
inline std::shared_ptr<Net> net(std::uint64_t seed = 1, double drop = 0.0) {
  at::manual_seed(seed);
  return std::make_shared<Net>(drop);
}

/// `count` batches of `size` examples, the same every time.
inline std::vector<tutti::Batch> batches(int count, std::int64_t size = 6) {
  at::manual_seed(7);
  std::vector<tutti::Batch> out;
  for (int i = 0; i < count; ++i) {
    out.emplace_back(at::randn({size, 4}), at::randn({size, 2}));
  }
  return out;
}

/// All parameters and buffers of `module` as one vector.
inline at::Tensor flat(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : module.parameters()) {
    parts.push_back(tensor.detach().flatten());
  }
  for (const auto& tensor : module.buffers()) {
    parts.push_back(tensor.flatten().to(at::kFloat));
  }
  return at::cat(parts);
}

}  // namespace tiny
