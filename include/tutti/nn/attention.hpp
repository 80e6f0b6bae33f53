// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/nn/dropout.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/embedding.h>

/// Attention of several heads, also with a bias by position, and who else knows of positions.
namespace tutti::nn {

/// What attention adds to its scores, by the positions of query and key.
class PositionBias {
 public:
  PositionBias() = default;
  virtual ~PositionBias() = default;
  PositionBias(const PositionBias&) = delete;
  PositionBias& operator=(const PositionBias&) = delete;

  /// The bias for sequences of `length`, of like's device and dtype: broadcasts to
  /// [N, heads, length, length].
  virtual at::Tensor operator()(std::int64_t length, const at::Tensor& like) = 0;
};

/// Softmax attention of several heads, a base class for the attention layers of models.
///
/// `softmax(q k^T / sqrt(D) + bias) v`, where keys that are not to be seen count nothing. The bias
/// is none but for PositionBiased.
class HeadedAttention {
 public:
  HeadedAttention(std::int64_t heads, bool causal) : heads_(heads), causal_(causal) {}
  virtual ~HeadedAttention() = default;

  [[nodiscard]] std::int64_t heads() const { return heads_; }
  /// No position sees later ones.
  [[nodiscard]] bool causal() const { return causal_; }

  /// x: [N, T, heads * D]. Returns [N, heads, T, D].
  [[nodiscard]] at::Tensor split_heads(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), heads_, x.size(2) / heads_}).transpose(1, 2);
  }

  /// The weights of the values, before dropout. q, k: [N, heads, T, D]. keep: bool, broadcasts to
  /// [N, heads, T, T]; undefined: all keys. Returns [N, heads, T, T].
  [[nodiscard]] at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& keep) const {
    at::Tensor scores =
        q.matmul(k.transpose(-2, -1)).div(std::sqrt(static_cast<double>(q.size(-1))));
    if (const at::Tensor bias = bias_of(k.size(-2), scores); bias.defined()) {
      scores = scores.add(bias);
    }
    if (const at::Tensor seen = with_causal(keep, q); seen.defined()) {
      scores = scores.masked_fill(seen.logical_not(), lowest(scores));
    }
    return scores.softmax(-1);
  }

  /// q, k, v: [N, heads, T, D]. keep: as above. dropout: of the probabilities; empty: none.
  /// Returns [N, T, heads * D].
  [[nodiscard]] at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& keep, Dropout& dropout) const {
    const bool drops =
        dropout && (dropout->slot() || (dropout->is_training() && dropout->options.p() > 0));
    const at::Tensor y =
        drops ? dropout(probabilities(q, k, keep)).matmul(v) : in_one_kernel(q, k, v, keep);
    return y.transpose(1, 2).flatten(2);
  }

 protected:
  /// What is added to the scores, as PositionBias gives it; undefined: nothing.
  [[nodiscard]] virtual at::Tensor bias_of(std::int64_t /*length*/,
                                           const at::Tensor& /*like*/) const {
    return {};
  }

 private:
  static double lowest(const at::Tensor& scores) {
    return scores.scalar_type() == at::kHalf ? -65504.0
           : scores.scalar_type() == at::kBFloat16
               ? -3.3895313892515355e38
               : static_cast<double>(std::numeric_limits<float>::lowest());
  }

  [[nodiscard]] at::Tensor with_causal(const at::Tensor& keep, const at::Tensor& q) const {
    if (!causal_) {
      return keep;
    }
    const std::int64_t length = q.size(-2);
    const at::Tensor past = at::ones({length, length}, q.options().dtype(at::kBool)).tril();
    return keep.defined() ? keep.logical_and(past) : past;
  }

  [[nodiscard]] at::Tensor in_one_kernel(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& keep) const {
    const at::Tensor bias = bias_of(k.size(-2), q);
    if (!bias.defined() && !keep.defined()) {
      return at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal_);
    }
    at::Tensor added = bias.defined() ? bias : q.new_zeros({1});
    if (const at::Tensor seen = with_causal(keep, q); seen.defined()) {
      const at::Tensor unseen = seen.logical_not();
      added = added.dim() == 1 ? unseen.to(q.scalar_type()).mul(lowest(q))
                               : added.masked_fill(unseen, lowest(q));
    }
    return at::scaled_dot_product_attention(q, k, v, added);
  }

  std::int64_t heads_;
  bool causal_;
};

/// Attention whose scores others may give a bias by position.
class PositionBiased : public HeadedAttention {
 public:
  ~PositionBiased() override;
  using HeadedAttention::HeadedAttention;

  /// Null: none.
  void set_position_bias(std::shared_ptr<PositionBias> bias) { bias_ = std::move(bias); }
  [[nodiscard]] const std::shared_ptr<PositionBias>& position_bias() const { return bias_; }

 protected:
  [[nodiscard]] at::Tensor bias_of(std::int64_t length, const at::Tensor& like) const override {
    return bias_ ? (*bias_)(length, like) : at::Tensor();
  }

 private:
  std::shared_ptr<PositionBias> bias_;
};

/// A module that adds a learned embedding of positions to its input, which others may exchange.
class PositionEmbedded {
 public:
  virtual ~PositionEmbedded() = default;

  /// The table, [positions, D], parameter `weight`.
  virtual torch::nn::EmbeddingImpl& position_embedding() = 0;
};

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE PositionBiased::~PositionBiased() = default;

}  // namespace tutti::nn

#endif
