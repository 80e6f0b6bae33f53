// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps of PyTorch, timm, schedulefree and pytorch_optimizer in double precision (golden.py), and
// the same steps with an optimizer of the library.

#include "support/catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/archive.hpp>

namespace golden_steps {

using tutti::Archive;
using Tensors = std::vector<at::Tensor>;

/// What the learning rate is multiplied by in each step.
inline constexpr std::array<double, 8> factors{1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 1.0, 0.75};

/// The tensors of golden.safetensors by name.
inline const std::map<std::string, at::Tensor>& tensors() {
  static const auto read = [] {
    std::map<std::string, at::Tensor> out;
    const auto path = std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/optim/golden.safetensors";
    for (const auto& [name, tensor] : tutti::checkpoint::read_safetensors(path)) {
      out[name] = tensor;
    }
    return out;
  }();
  return read;
}

/// The first weights; channels_last: of the one that has four dimensions.
inline Tensors first_weights(at::ScalarType type, bool channels_last) {
  Tensors out;
  for (const char* const name : {"p0", "p1", "p2"}) {
    at::Tensor one = tensors().at(name).to(type).clone();
    if (channels_last && one.dim() == 4) {
      one = one.contiguous(at::MemoryFormat::ChannelsLast);
    }
    out.push_back(one.requires_grad_());
  }
  return out;
}

/// A step with the gradients and the rate of that number.
template <class Optimizer>
void take_step(Optimizer& optimizer, const Tensors& parameters, double lr, std::size_t step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() =
        tensors().at("g" + std::to_string(i))[static_cast<std::int64_t>(step)].to(
            parameters[i].scalar_type());
  }
  optimizer.param_groups()[0].options().set_lr(lr * factors[step]);
  optimizer.step();
}

/// which: 0 for step 3, 1 for step 8.
inline void check_close(const std::string& name, const Tensors& got, std::int64_t which,
                        double tolerance) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const at::Tensor want = tensors().at(name + "/p" + std::to_string(i))[which];
    INFO(name << ", p" << i << " in " << got[i].scalar_type() << "\n" << got[i] << "\n" << want);
    CHECK(torch::allclose(got[i].detach().to(at::kDouble), want, tolerance, tolerance));
  }
}

/// All steps; saved and loaded after three of them, and equal bit for bit to what went on.
template <class Hyper>
void check_in(const std::string& name, const Hyper& hyper, at::ScalarType type, double tolerance,
              bool channels_last = false) {
  const Tensors weights = first_weights(type, channels_last);
  const auto optimizer = hyper.build(weights);
  for (std::size_t step = 0; step < 3; ++step) {
    take_step(*optimizer, weights, hyper.lr, step);
  }
  check_close(name, weights, 0, tolerance);
  Archive archive;
  optimizer->save(archive);
  Tensors others;
  for (const at::Tensor& weight : weights) {
    others.push_back(weight.detach().clone().requires_grad_());
  }
  const auto resumed = Hyper{.lr = 0.5}.build(others);
  resumed->load(archive);
  for (std::size_t step = 3; step < factors.size(); ++step) {
    take_step(*optimizer, weights, hyper.lr, step);
    take_step(*resumed, others, hyper.lr, step);
  }
  check_close(name, weights, 1, tolerance);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    INFO(name << ": resumed, p" << i);
    CHECK(at::equal(weights[i], others[i]));
  }
}

/// In floats, where those that are elementwise have loops of their own, and in doubles, which go
/// through LibTorch's functions. Floats: 2e-5 for eight steps of roundings.
template <class Hyper>
void check(const std::string& name, const Hyper& hyper) {
  check_in(name, hyper, at::kFloat, 2e-5);
  check_in(name, hyper, at::kFloat, 2e-5, /*channels_last=*/true);
  check_in(name, hyper, at::kDouble, 1e-9);
}

}  // namespace golden_steps
