// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/nn/module.h>

#include <tutti/config.hpp>

namespace tutti::train {

/// Says in which layer of `model` a forward pass fails, and with which shapes:
///
///     The layer "head.fc" (torch::nn::Linear) failed: aten::addmm was given head.fc.bias
///     Float[10], Float[64, 100] and head.fc.weight Float[10, 128].
///
/// Runs `forward` once more, without gradients, under LibTorch's tracer, so a pass that does not
/// fail costs nothing. error: what it said at first. Returns a sentence; nothing when it does not
/// fail again, or with other words.
std::string failing_layer(const torch::nn::Module& model, const std::string& error,
                          const std::function<void()>& forward);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/failing_layer.inl.hpp>
#endif
