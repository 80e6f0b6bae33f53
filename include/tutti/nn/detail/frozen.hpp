// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <torch/nn/module.h>

namespace tutti::nn::detail {

/// Freezes in `copy` the parameters that are frozen in `original`, which LibTorch's clone()
/// forgets.
inline void keep_frozen(const torch::nn::Module& original, torch::nn::Module& copy) {
  const auto from = original.parameters();
  const auto to = copy.parameters();
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i].set_requires_grad(from[i].requires_grad());
  }
}

}  // namespace tutti::nn::detail
