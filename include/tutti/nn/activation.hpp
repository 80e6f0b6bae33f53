// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/silu.h>

#include <tutti/core/detail/throw.hpp>

/// The nonlinearities of transformers, chosen at run time.
namespace tutti::nn {

/// By the names of Hugging Face. Those that have weights, "prelu" and "xielu", are not here.
enum class Activation : std::uint8_t {
  gelu,        ///< x Phi(x), exactly
  gelu_new,    ///< the same with a tanh for Phi
  relu,        ///< max(x, 0)
  silu,        ///< x sigmoid(x)
  quick_gelu,  ///< x sigmoid(1.702 x)
  gelu_10,     ///< gelu, from -10 to 10
  relu2,       ///< relu, squared
  relu6,       ///< from 0 to 6
  leaky_relu,  ///< x, and 0.01 x below 0
  hardswish,   ///< x relu6(x + 3) / 6
  mish,        ///< x tanh(softplus(x))
  laplace,     ///< a normal distribution's integral, its mean sqrt(1 / 2), its variance 1 / (4 pi)
  tanh,
  sigmoid,
  linear,  ///< x itself
};

namespace detail {

// The first with each value is its name.
inline constexpr std::array<std::pair<std::string_view, Activation>, 21> activation_table{{
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu_new},
    {"relu", Activation::relu},
    {"silu", Activation::silu},
    {"quick_gelu", Activation::quick_gelu},
    {"gelu_10", Activation::gelu_10},
    {"relu2", Activation::relu2},
    {"relu6", Activation::relu6},
    {"leaky_relu", Activation::leaky_relu},
    {"hardswish", Activation::hardswish},
    {"mish", Activation::mish},
    {"laplace", Activation::laplace},
    {"tanh", Activation::tanh},
    {"sigmoid", Activation::sigmoid},
    {"linear", Activation::linear},
    {"gelu_python", Activation::gelu},
    {"gelu_pytorch_tanh", Activation::gelu_new},
    {"gelu_python_tanh", Activation::gelu_new},
    {"gelu_fast", Activation::gelu_new},
    {"gelu_accurate", Activation::gelu_new},
    {"swish", Activation::silu},
}};

}  // namespace detail

constexpr std::string_view to_string(Activation activation) {
  for (const auto& [name, one] : detail::activation_table) {
    if (one == activation) {
      return name;
    }
  }
  return "unknown";
}

/// The nonlinearity of that name in Hugging Face's configurations; nothing for one that there is
/// not. "gelu_python" is gelu; "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast" and
/// "gelu_accurate" are gelu_new; "swish" is silu.
constexpr std::optional<Activation> activation_named(std::string_view name) {
  for (const auto& [known, one] : detail::activation_table) {
    if (name == known) {
      return one;
    }
  }
  return std::nullopt;
}

/// All names that activation_named() knows, for a message: `"gelu", "gelu_new", ...`.
inline std::string activation_names() {
  std::string names;
  for (const auto& [name, one] : detail::activation_table) {
    names.append(names.empty() ? "\"" : ", \"").append(name).append("\"");
  }
  return names;
}

/// x, any shape, element by element. Source: ACT2FN of Hugging Face's Transformers.
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
    case Activation::quick_gelu:
      return x.mul(x.mul(1.702).sigmoid());
    case Activation::gelu_10:
      return at::gelu(x).clamp(-10, 10);
    case Activation::relu2:
      return x.relu().square();
    case Activation::relu6:
      return at::relu6(x);
    case Activation::leaky_relu:
      return at::leaky_relu(x);
    case Activation::hardswish:
      return at::hardswish(x);
    case Activation::mish:
      return at::mish(x);
    case Activation::laplace:
      return x.sub(0.707107).div(0.282095 * 1.4142135623730951).erf().add(1).mul(0.5);
    case Activation::tanh:
      return x.tanh();
    case Activation::sigmoid:
      return x.sigmoid();
    case Activation::linear:
      return x;
  }
  TUTTI_CHECK(false, "activate: unknown activation");
}

}  // namespace tutti::nn
