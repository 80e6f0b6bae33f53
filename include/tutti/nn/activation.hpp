// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include <tutti/core/detail/throw.hpp>

/// The nonlinearities of transformers, chosen at run time.
namespace tutti::nn {

/// By the names of Hugging Face: "gelu", "gelu_new", "relu", "silu".
enum class Activation : std::uint8_t {
  gelu,      ///< x Phi(x), exactly
  gelu_new,  ///< the same with a tanh for Phi
  relu,
  silu,
};

constexpr std::string_view to_string(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_new:
      return "gelu_new";
    case Activation::relu:
      return "relu";
    case Activation::silu:
      return "silu";
  }
  return "unknown";
}

/// x, any shape, element by element.
inline at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_new:
      return at::gelu(x, "tanh");
    case Activation::relu:
      return x.relu();
    case Activation::silu:
      return at::silu(x);
  }
  TUTTI_CHECK(false, "activate: unknown activation");
}

}  // namespace tutti::nn
