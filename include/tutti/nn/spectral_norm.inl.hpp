// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/spectral_norm.hpp>

#include <ATen/ops/dot.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include <tutti/core/autocast.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::functional {

TUTTI_INLINE void power_iteration(const at::Tensor& matrix, const at::Tensor& u,
                                  const at::Tensor& v, const SpectralNormOptions& options) {
  const c10::NoGradGuard no_grad;
  const Autocast full(matrix.device().type(), matrix.scalar_type(), /*enabled=*/false);
  const auto unit = [&](const at::Tensor& x) { return x.div(x.norm().clamp_min(options.eps)); };
  for (std::int64_t i = 0; i < options.n_power_iterations; ++i) {
    u.copy_(unit(matrix.mv(v)));
    v.copy_(unit(matrix.t().mv(u)));
  }
}

TUTTI_INLINE at::Tensor spectral_norm(const at::Tensor& w, const at::Tensor& u,
                                      const at::Tensor& v) {
  const Autocast full(w.device().type(), w.scalar_type(), /*enabled=*/false);
  const at::Tensor sigma = u.dot(w.flatten(1).mv(v));
  return w / sigma;
}

}  // namespace tutti::functional

namespace tutti::nn {

TUTTI_INLINE SpectralNormed::~SpectralNormed() = default;

TUTTI_INLINE SpectralNormed::SpectralNormed(const at::Tensor& weight, const at::Tensor& bias,
                                            const SpectralNormOptions& options)
    : original_(weight), options_(options) {
  TUTTI_CHECK(weight.dim() > 1, "SpectralNorm: got a weight ", weight.sizes(),
              ", expected two dimensions or more");
  if (bias.defined()) {
    register_parameter("bias", bias, bias.requires_grad());
  }
  const at::Tensor matrix = weight.detach().flatten(1);
  const auto drawn = [&](std::int64_t size) {
    const at::Tensor x = at::randn({size}, matrix.options());
    return x.div(x.norm().clamp_min(options.eps));
  };
  auto vectors = std::make_shared<torch::nn::Module>("_SpectralNorm");
  u_ = vectors->register_buffer("_u", drawn(matrix.size(0)));
  v_ = vectors->register_buffer("_v", drawn(matrix.size(1)));
  functional::power_iteration(matrix, u_, v_, {.n_power_iterations = 15, .eps = options.eps});
  auto holder = std::make_shared<torch::nn::Module>("ParametrizationList");
  holder->register_parameter("original", weight, weight.requires_grad());
  holder->register_module("0", std::move(vectors));
  auto list = std::make_shared<torch::nn::Module>("ModuleDict");
  list->register_module("weight", std::move(holder));
  register_module("parametrizations", std::move(list));
}

TUTTI_INLINE at::Tensor SpectralNormed::normed() {
  if (is_training()) {
    functional::power_iteration(original_.detach().flatten(1), u_, v_, options_);
  }
  // Copies, for the graph keeps them and a second pass moves u and v in place.
  return functional::spectral_norm(original_, u_.clone(), v_.clone());
}

}  // namespace tutti::nn
