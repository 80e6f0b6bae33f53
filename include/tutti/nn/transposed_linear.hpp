// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tutti/config.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>

/// A linear layer that stores its weight the other way round.
namespace tutti::nn {

/// What TransposedLinear is without a slot.
class PlainTransposedLinearImpl : public torch::nn::Cloneable<PlainTransposedLinearImpl> {
 public:
  ~PlainTransposedLinearImpl() override;
  PlainTransposedLinearImpl(std::int64_t in, std::int64_t out);

  void reset() override;

  /// x: [..., in]. Returns [..., out].
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight.t(), bias); }

  at::Tensor weight;  ///< [in, out]
  at::Tensor bias;    ///< [out]

 private:
  std::int64_t in_;
  std::int64_t out_;
};

/// `x W + b` with W of [in, out]: what GPT-2's weights are stored for, replaceable; parameters
/// `weight`, `bias`. Source: Hugging Face Transformers, `transformers.pytorch_utils.Conv1D`.
using TransposedLinearImpl = Replaceable<PlainTransposedLinearImpl>;
TORCH_MODULE(TransposedLinear);

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE PlainTransposedLinearImpl::~PlainTransposedLinearImpl() = default;

TUTTI_INLINE PlainTransposedLinearImpl::PlainTransposedLinearImpl(std::int64_t in, std::int64_t out)
    : in_(in), out_(out) {
  reset();
}

TUTTI_INLINE void PlainTransposedLinearImpl::reset() {
  weight = register_parameter("weight", at::empty({in_, out_}));
  bias = register_parameter("bias", at::zeros({out_}));
  torch::nn::init::normal_(weight, 0, 0.02);
}

}  // namespace tutti::nn

#endif
