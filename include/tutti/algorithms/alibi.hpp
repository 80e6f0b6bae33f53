// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/config.hpp>
#include <tutti/core/batch.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/attention.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/surgery.hpp>
#include <tutti/nn/walk.hpp>

/// ALiBi: attention with linear biases in place of position embeddings.
namespace tutti {

namespace functional {

/// How much each head dislikes distance: 2^(-8 (i + 1) / n) for head i of n, a power of two;
/// otherwise those of the power of two below, then every second one of the power above.
/// Throws c10::Error (ValueError) when n_heads is below 1.
std::vector<double> alibi_slopes(std::int64_t n_heads);

/// What is added to the scores of attention over `length` positions, fp32.
///
/// causal: `slope * k` for key position k, [n_heads, 1, length], which under a softmax is the same
/// as minus slope times the distance. Otherwise `-slope * |q - k|`, [1, n_heads, length, length].
at::Tensor alibi_bias(std::int64_t n_heads, std::int64_t length, bool causal,
                      at::Device device = at::kCPU);

}  // namespace functional

namespace detail {

// One for all layers of a model, so that the bias of a length is computed once.
class AlibiBias final : public nn::PositionBias {
 public:
  // max_length: of the sequences; longer ones are refused.
  AlibiBias(std::int64_t heads, bool causal, std::int64_t max_length)
      : heads_(heads), causal_(causal), max_length_(max_length) {}

  at::Tensor operator()(std::int64_t length, const at::Tensor& like) override;

 private:
  std::int64_t heads_;
  bool causal_;
  std::int64_t max_length_;
  at::Tensor bias_;
};

}  // namespace detail

namespace functional {

/// What apply_alibi did.
struct AlibiReport {
  std::int64_t attentions = 0;  ///< layers whose scores have the bias
  std::int64_t tables = 0;      ///< position embeddings that are zero now
};

/// Gives attention its biases and makes the position embeddings zeros that do not learn.
///
/// model: with layers that derive from nn::PositionBiased and nn::PositionEmbedded, as GPT-2 and
/// BERT have. max_sequence_length: of the sequences to come; >= 1. optimizers: forget the position
/// embeddings. Other parameters stay the same objects, tied ones tied. May be applied again with
/// another length.
/// Throws c10::Error (ValueError) for the length, c10::Error when the model has no such layer and
/// if_none is error.
/// Source: Press et al., "Train Short, Test Long", ICLR 2022; MosaicML Composer,
/// `composer.algorithms.alibi.apply_alibi`.
AlibiReport apply_alibi(torch::nn::Module& model, std::int64_t max_sequence_length,
                        const surgery::Optimizers& optimizers = {},
                        surgery::IfNone if_none = surgery::IfNone::error);

/// Cuts every sequence of the batch into 1 / scaling consecutive ones: [B, S, ...] becomes
/// [B / scaling, S * scaling, ...].
///
/// scaling: in (0, 1]. Throws c10::Error (ValueError) when a size does not come out whole or a
/// tensor is not [B, S, ...].
Batch shorten_sequences(Batch batch, double scaling);

}  // namespace functional

/// Trains on short sequences a model that reads long ones: linear biases for position embeddings.
///
/// Source: Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input
/// Length Extrapolation", ICLR 2022.
struct ALiBi final {
  std::int64_t max_sequence_length = 0;              ///< the longest sequences ever; has to be set
  double train_sequence_length_scaling = 0.25;       ///< of the length in training; in (0, 1]
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when the model has no attention of ours

  static constexpr std::string_view name = "ALiBi";
  using events = types<Init, AfterDataloader>;
  static constexpr About about{
      .no_graph =
          "makes its biases anew when the length changes, and a graph would read the old ones",
  };
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<changes_sequence_length>},
      .runs_before = {{id<GatedLinearUnits>, "attention comes first in a block"},
                      {id<Factorize>,
                       "the biases are for the attention layers as they were built"}},
  };

  template <class Model>
  static constexpr bool supports = offers<Model, has_attention>;

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(max_sequence_length >= 1, "ALiBi: max_sequence_length", max_sequence_length,
           "1 or more; there is no default");
    expect(train_sequence_length_scaling > 0 && train_sequence_length_scaling <= 1,
           "ALiBi: train_sequence_length_scaling", train_sequence_length_scaling,
           "a number above 0, at most 1");
  }

  bool match(AfterDataloader, const State&) const { return train_sequence_length_scaling != 1; }

  void apply(Init, State& state) const {
    functional::apply_alibi(*state.model, max_sequence_length, state.optimizers, if_none);
  }
  void apply(AfterDataloader, State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE at::Tensor AlibiBias::operator()(std::int64_t length, const at::Tensor& like) {
  TUTTI_CHECK(length <= max_length_, "ALiBi: the sequences have length ", length,
              " and max_sequence_length is ", max_length_,
              "; set it to the longest sequences that the model will ever read");
  if (!bias_.defined() || bias_.size(-1) != length || bias_.device() != like.device() ||
      bias_.scalar_type() != like.scalar_type()) {
    bias_ = functional::alibi_bias(heads_, length, causal_, like.device()).to(like.scalar_type());
  }
  return bias_;
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void ALiBi::apply(AfterDataloader, State& state) const {
  state.batch =
      functional::shorten_sequences(std::move(state.batch), train_sequence_length_scaling);
}

}  // namespace tutti

namespace tutti::functional {

TUTTI_INLINE std::vector<double> alibi_slopes(std::int64_t n_heads) {
  TUTTI_CHECK_VALUE(n_heads >= 1, "alibi_slopes: n_heads is ", n_heads, ", expected 1 or more");
  std::int64_t below = 1;
  while (below * 2 <= n_heads) {
    below *= 2;
  }
  std::vector<double> slopes;
  for (std::int64_t i = 0; i < n_heads; ++i) {
    const double numerator = static_cast<double>(i < below ? 2 * (i + 1) : 2 * (i - below) + 1);
    slopes.push_back(std::exp2(-4.0 * numerator / static_cast<double>(below)));
  }
  return slopes;
}

TUTTI_INLINE at::Tensor alibi_bias(std::int64_t n_heads, std::int64_t length, bool causal,
                                   at::Device device) {
  const at::Tensor slopes =
      at::tensor(alibi_slopes(n_heads)).to(at::kFloat).to(device).view({n_heads, 1, 1});
  const at::Tensor at = at::arange(length, slopes.options());
  if (causal) {
    return slopes.mul(at);
  }
  return at.unsqueeze(0).sub(at.unsqueeze(1)).abs().neg().mul(slopes).unsqueeze(0);
}

}  // namespace tutti::functional

namespace tutti::detail {

// Zeros of another length in the place of a table that learns no more.
TUTTI_INLINE void retire(torch::nn::EmbeddingImpl& table, std::int64_t positions,
                         const surgery::Optimizers& optimizers) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor& weight = table.weight;
  weight.set_data(weight.detach().new_zeros({positions, weight.size(1)}));
  weight.set_requires_grad(false);
  weight.mutable_grad().reset();
  table.options.num_embeddings(positions);
  for (torch::optim::Optimizer* optimizer : optimizers) {
    for (torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      std::erase_if(group.params(), [&](const at::Tensor& other) { return other.is_same(weight); });
    }
    optimizer->state().erase(weight.unsafeGetTensorImpl());
  }
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE AlibiReport apply_alibi(torch::nn::Module& model, std::int64_t max_sequence_length,
                                     const surgery::Optimizers& optimizers,
                                     surgery::IfNone if_none) {
  TUTTI_CHECK_VALUE(max_sequence_length >= 1, "ALiBi: max_sequence_length is ", max_sequence_length,
                    ", expected 1 or more");
  AlibiReport report;
  std::map<std::pair<std::int64_t, bool>, std::shared_ptr<nn::PositionBias>> biases;
  const auto change = [&](torch::nn::Module& module) {
    if (auto* attention = dynamic_cast<nn::PositionBiased*>(&module)) {
      auto& bias = biases[{attention->heads(), attention->causal()}];
      if (!bias) {
        bias = std::make_shared<::tutti::detail::AlibiBias>(attention->heads(), attention->causal(),
                                                            max_sequence_length);
      }
      attention->set_position_bias(bias);
      ++report.attentions;
    }
    if (auto* embedded = dynamic_cast<nn::PositionEmbedded*>(&module)) {
      ::tutti::detail::retire(embedded->position_embedding(), max_sequence_length, optimizers);
      ++report.tables;
    }
  };
  change(model);
  for (const surgery::Visit& where : surgery::walk(model)) {
    change(*where.module);
  }
  if (report.attentions == 0) {
    surgery::report_none(if_none, "attention that derives from tutti::nn::PositionBiased", "ALiBi");
  }
  return report;
}

TUTTI_INLINE Batch shorten_sequences(Batch batch, double scaling) {
  TUTTI_CHECK_VALUE(scaling > 0 && scaling <= 1, "ALiBi: train_sequence_length_scaling is ",
                    scaling, ", expected a number above 0, at most 1");
  const at::Tensor ids = batch.inputs();
  TUTTI_CHECK_VALUE(ids.dim() >= 2, "ALiBi: the inputs are ", ids.sizes(), ", expected [B, S]");
  const double rows = static_cast<double>(ids.size(0)) / scaling;
  const double length = static_cast<double>(ids.size(1)) * scaling;
  const auto whole = [](double x) { return std::abs(x - std::round(x)) < 1e-9 * x; };
  TUTTI_CHECK_VALUE(whole(rows) && whole(length), "ALiBi: the inputs are ", ids.sizes(), " and ",
                    "train_sequence_length_scaling is ", scaling, ", which makes ", rows,
                    " sequences of ", length, ", expected whole numbers");
  for (auto& [name, tensor] : batch) {
    TUTTI_CHECK_VALUE(
        tensor.dim() >= 2 && tensor.size(0) == ids.size(0) && tensor.size(1) == ids.size(1),
        "ALiBi: \"", name, "\" is ", tensor.sizes(), ", expected [", ids.size(0), ", ", ids.size(1),
        ", ...] as the inputs are; set "
        "train_sequence_length_scaling to 1 for labels of whole sequences");
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape[0] = std::llround(rows);
    shape[1] = std::llround(length);
    tensor = tensor.reshape(shape);
  }
  return batch;
}

}  // namespace tutti::functional

#endif
