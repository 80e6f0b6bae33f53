// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/core/Tensor.h>

/// Layers whose weights are divided by their largest singular value.
///
/// Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", ICLR 2018.
namespace tutti {

/// How the largest singular value is found.
struct SpectralNormOptions {
  std::int64_t n_power_iterations = 1;  ///< in each pass of the training; >= 1
  double eps = 1e-12;                   ///< below which a vector's length is not divided by; >= 0
};

namespace functional {

/// Moves u and v towards the singular vectors of `matrix`: v = W^T u, u = W v, each of length 1.
///
/// matrix: [rows, columns]. u: [rows]. v: [columns]. Both are written in place.
/// Source: PyTorch, `torch.nn.utils.parametrizations.spectral_norm`.
void power_iteration(const at::Tensor& matrix, const at::Tensor& u, const at::Tensor& v,
                     const SpectralNormOptions& options = {});

/// `w / sigma` with sigma = u^T W v, W being w as a matrix [out, everything else].
///
/// w: [out, ...], floating. u, v: as power_iteration() leaves them. Gradients flow through sigma,
/// not through u and v. Returns w's shape.
at::Tensor spectral_norm(const at::Tensor& w, const at::Tensor& u, const at::Tensor& v);

}  // namespace functional

namespace nn {

/// What the wrappers below have in common.
class SpectralNormed : public Substitute {
 public:
  ~SpectralNormed() override;

  /// The trained weight, as it is.
  [[nodiscard]] const at::Tensor& original() const { return original_; }

 protected:
  /// weight: that of the layer. bias: that, or undefined.
  SpectralNormed(const at::Tensor& weight, const at::Tensor& bias,
                 const SpectralNormOptions& options);

  /// The weight of a pass; in training u and v move first.
  at::Tensor normed();

 private:
  at::Tensor original_;
  at::Tensor u_;
  at::Tensor v_;
  SpectralNormOptions options_;
};

/// The layer `Layer` with the weight functional::spectral_norm(original) in each pass.
///
/// Trained are `bias` and `parametrizations.weight.original`, the tensors of the old layer; the
/// buffers are `parametrizations.weight.0._u` and `..._v`, which begin at random, 15 iterations on.
template <class Layer>
class SpectralNormedImpl : public SpectralNormed {
 public:
  using Plain = typename Layer::Impl::Plain;

  /// Over the tensors of `layer`: they stay the same objects.
  explicit SpectralNormedImpl(const Plain& layer, const SpectralNormOptions& options = {})
      : SpectralNormed(layer.weight, layer.bias, options), layer_(twin(layer)) {}

  /// x: as the layer takes. Returns what it gives.
  at::Tensor forward(const at::Tensor& x) {
    const auto call = layer_->twin();  // the kept layer itself stays as it is
    call->weight = normed();
    return call->forward(x);
  }

 private:
  std::shared_ptr<Replaceable<Plain>> layer_;  // not registered: its tensors are, by the base
};

}  // namespace nn

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
