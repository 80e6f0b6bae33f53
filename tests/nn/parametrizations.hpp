// SPDX-License-Identifier: Apache-2.0
#pragma once

// The cases that parametrizations.py makes with torch.nn.utils.parametrizations.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/nn/sequential.hpp>

#include "support/catch.hpp"

namespace parametrizations {

inline const std::map<std::string, at::Tensor>& tensors() {
  static const auto read = [] {
    auto all = tutti::checkpoint::read_safetensors(std::string(TUTTI_SOURCE_DIR) +
                                                   "/tests/nn/parametrizations.safetensors");
    return std::map<std::string, at::Tensor>(all.begin(), all.end());
  }();
  return read;
}

/// Two passes with a step of SGD each, as torch has them: outputs, gradients, parameters, buffers.
///
/// model: a Sequential of one layer, "0", with the method applied; double.
inline void check(const std::string& name, tutti::nn::Sequential model) {
  const auto golden = [&](const std::string& key) {
    INFO(name << "." << key);
    REQUIRE(tensors().contains(name + "." + key));
    return tensors().at(name + "." + key);
  };
  const auto same = [&](const at::Tensor& found, const std::string& key) {
    INFO(name << "." << key);
    const at::Tensor expected = golden(key);
    CHECK(found.sizes() == expected.sizes());
    CHECK(found.allclose(expected, 1e-9, 1e-11));  // double, sums in another order
  };
  const at::Tensor x = golden("x");
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (const auto& item : model->named_parameters()) {
    state.emplace_back(item.key().substr(2), item.value());
  }
  for (const auto& item : model->named_buffers()) {
    state.emplace_back(item.key().substr(2), item.value());
  }
  {
    const torch::NoGradGuard no_grad;
    for (auto& [key, tensor] : state) {
      tensor.copy_(golden("0." + key));
    }
  }
  for (const std::string pass : {"1", "2"}) {
    model->zero_grad();
    const at::Tensor y = model->forward(x);
    same(y, pass + ".y");
    y.pow(2).sum().backward();
    const torch::NoGradGuard no_grad;
    for (const auto& item : model->named_parameters()) {
      same(item.value().grad(), pass + ".grad." + item.key().substr(2));
      item.value().sub_(item.value().grad(), 0.1);
    }
    for (const auto& [key, tensor] : state) {
      same(tensor, pass + "." + key);
    }
  }
  model->eval();
  same(model->forward(x), "eval");
}

}  // namespace parametrizations
