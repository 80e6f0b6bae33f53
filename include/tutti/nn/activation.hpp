// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
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

/// The nonlinearity of that name in Hugging Face's configurations; nothing for one that there is
/// not. "gelu_python" is gelu; "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast" and
/// "gelu_accurate" are gelu_new; "swish" is silu.
constexpr std::optional<Activation> activation_named(std::string_view name) {
  for (const Activation one :
       {Activation::gelu, Activation::gelu_new, Activation::relu, Activation::silu}) {
    if (name == to_string(one)) {
      return one;
    }
  }
  if (name == "gelu_pytorch_tanh" || name == "gelu_python_tanh" || name == "gelu_fast" ||
      name == "gelu_accurate") {
    return Activation::gelu_new;
  }
  if (name == "gelu_python") {
    return Activation::gelu;
  }
  return name == "swish" ? std::optional(Activation::silu) : std::nullopt;
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
