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
      .required_on_load = true,
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
#include <tutti/algorithms/alibi.inl.hpp>
#endif
