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
#include <tutti/nn/spectral_norm.inl.hpp>
#endif
