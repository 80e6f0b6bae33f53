// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/core/detail/only_operators.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/dropout.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/embedding.h>
#include <torch/version.h>

/// Attention of several heads, also with a bias by position, and who else knows of positions.
namespace tutti::nn {

/// What attention adds to its scores, by the positions of query and key.
class PositionBias {
 public:
  PositionBias() = default;
  virtual ~PositionBias() = default;
  PositionBias(const PositionBias&) = delete;
  PositionBias& operator=(const PositionBias&) = delete;

  /// The bias for sequences of `length`, on like's device: broadcasts to
  /// [N, heads, length, length]. fp32 or like's dtype; low precision merges the large numbers of
  /// long sequences, and what is fp32 here stays accurate beside scores of low precision.
  virtual at::Tensor operator()(std::int64_t length, const at::Tensor& like) = 0;
};

/// How attention is computed, beside its scores.
struct AttentionOptions {
  std::int64_t heads = 1;
  bool causal = false;               ///< no position sees later ones
  std::int64_t key_value_heads = 0;  ///< each serves heads / key_value_heads heads; 0: all heads
  std::int64_t window = 0;  ///< causal: how many keys a query sees, its own included; 0: all
  std::optional<double> scale = {};  ///< of the scores; none: 1 / sqrt(D)
};

/// Which keys the layers of a forward pass may see: those that are no padding.
///
/// What attention needs beside it, the mask of the keys that come later, is made once and kept, so
/// that all layers share one; copies share it too. A tensor converts to it.
class SeenKeys {
 public:
  /// All keys; nothing is kept.
  SeenKeys() = default;

  /// keep: bool, broadcasts to [N, 1, queries, keys]; undefined: all keys. Where a cache holds back
  /// the oldest keys, the last of `keep` count.
  SeenKeys(at::Tensor keep)  // NOLINT: converts by design
      : shared_(std::make_shared<Shared>()) {
    // On a CPU it costs next to nothing to see that no key is padding.
    if (keep.defined() &&
        (::tutti::detail::only_operators() || !(keep.is_cpu() && keep.all().item<bool>()))) {
      shared_->keep = std::move(keep);
    }
  }

  /// Which positions meet.
  struct Positions {
    std::int64_t queries = 0;  ///< the last ones
    std::int64_t keys = 0;
    bool causal = false;
    std::int64_t window = 0;
    bool operator==(const Positions&) const = default;
  };

  /// Nothing is hidden but the keys after a query, and there are as many keys as queries.
  [[nodiscard]] bool only_causal(const Positions& at) const;

  /// The keys that are seen as bool, broadcasts to [N, 1, queries, keys]; undefined: all of them.
  [[nodiscard]] at::Tensor seen(const Positions& at, at::Device device) const;

  /// What is added to scores of like's type and device: 0 for keys that are seen, the lowest number
  /// for others, so that a query that sees nothing still gets numbers; on top of `bias` where that
  /// is defined. Undefined: nothing. Four dimensions.
  /// A bias by key alone that is more precise than the scores is given by the distance to the
  /// query's own position, which a softmax cannot tell from it: the keys that count most get small
  /// numbers, which low precision holds.
  [[nodiscard]] at::Tensor added(const Positions& at, const at::Tensor& like,
                                 const at::Tensor& bias) const;

  /// A number that takes part in no softmax, of that type.
  static double lowest(at::ScalarType type);

 private:
  struct Made {
    Positions at;
    at::ScalarType type;
    at::Tensor bias, added;
  };
  struct Shared {
    at::Tensor keep;
    std::vector<Made> made;
  };

  [[nodiscard]] at::Tensor keep() const { return shared_ ? shared_->keep : at::Tensor(); }

  static bool narrows(const Positions& at) { return at.window > 0 && at.keys > at.window; }

  static at::Tensor last(const at::Tensor& keep, std::int64_t keys) {
    return keep.defined() && keep.size(-1) > keys ? keep.slice(-1, keep.size(-1) - keys) : keep;
  }

  // [queries, keys]: the keys up to the query's own, of which the last `window`.
  static at::Tensor causal(const Positions& at, at::Device device);

  [[nodiscard]] at::Tensor make(const Positions& at, const at::Tensor& like,
                                const at::Tensor& bias) const;

  // The bias in the type in which the scores are computed.
  static at::Tensor rounded(const Positions& at, const at::Tensor& like, const at::Tensor& bias);

  static at::Tensor four(at::Tensor x);

  std::shared_ptr<Shared> shared_;
};

/// Softmax attention of several heads, a base class for the attention layers of models.
///
/// `softmax(q k^T / sqrt(D) + bias) v`, where keys that are not to be seen count nothing. The bias
/// is none but for PositionBiased. Key-value head j serves the query heads from j * H / K up to
/// those of the next.
class HeadedAttention {
 public:
  HeadedAttention(std::int64_t heads, bool causal)
      : HeadedAttention(AttentionOptions{.heads = heads, .causal = causal}) {}

  /// Throws c10::Error (ValueError) when the key-value heads do not divide the heads.
  explicit HeadedAttention(const AttentionOptions& options) : attention_(options) {
    if (attention_.key_value_heads == 0) {
      attention_.key_value_heads = attention_.heads;
    }
    TUTTI_CHECK_VALUE(
        attention_.key_value_heads >= 1 && attention_.heads % attention_.key_value_heads == 0,
        "attention: there are ", attention_.heads, " heads and ", attention_.key_value_heads,
        " of keys and values, expected a number that divides the heads");
  }
  virtual ~HeadedAttention() = default;

  [[nodiscard]] std::int64_t heads() const { return attention_.heads; }
  [[nodiscard]] std::int64_t key_value_heads() const { return attention_.key_value_heads; }
  /// No position sees later ones.
  [[nodiscard]] bool causal() const { return attention_.causal; }
  /// How many keys a query sees, its own included; 0: all.
  [[nodiscard]] std::int64_t window() const { return attention_.window; }

  /// From now on the layer computes one of so many equal shares of its heads, as a rank of several
  /// does; of fewer heads of keys and values than shares, one. heads() and key_value_heads() are
  /// those of the share.
  /// Throws c10::Error (ValueError) when shares do not divide the heads, nor the heads of keys and
  /// values or these them, and with a bias by position, which is of all heads.
  virtual void take_share(std::int64_t shares);

  /// The layer has a share of its heads.
  [[nodiscard]] bool has_share() const { return has_share_; }

  /// x: [N, T, heads * D]. Returns [N, heads, T, D].
  [[nodiscard]] at::Tensor split_heads(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), heads(), x.size(2) / heads()}).transpose(1, 2);
  }

  /// The weights of the values, before dropout. q: [N, heads, T, D]. k: [N, key_value_heads, P, D].
  /// keys: which may be seen. Returns [N, heads, T, P].
  [[nodiscard]] at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k,
                                         const SeenKeys& keys) const;

  /// q: [N, heads, T, D]. k, v: [N, key_value_heads, P, D], of which the last T are the queries'
  /// own. keys: as above. dropout: of the probabilities; empty: none. Returns [N, T, heads * D].
  [[nodiscard]] at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const SeenKeys& keys, Dropout& dropout) const;

 protected:
  /// What is added to the scores, as PositionBias gives it; undefined: nothing.
  [[nodiscard]] virtual at::Tensor bias_of(std::int64_t /*length*/,
                                           const at::Tensor& /*like*/) const {
    return {};
  }

 private:
  [[nodiscard]] SeenKeys::Positions positions(const at::Tensor& q, const at::Tensor& k) const {
    return {q.size(-2), k.size(-2), attention_.causal, attention_.window};
  }

  // Keys or values [N, K, P, D] with each head as often as it serves: [N, heads, P, D].
  [[nodiscard]] at::Tensor for_all_heads(const at::Tensor& x) const;

  [[nodiscard]] at::Tensor in_one_kernel(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const SeenKeys& keys,
                                         double drop) const;

  // The kernel reads the heads of keys where they are. Other kernels do so for some types and
  // masks alone, and what is in their place would write down all scores.
  [[nodiscard]] bool shares_heads(const at::Tensor& q) const;

  static std::optional<at::Tensor> given(const at::Tensor& mask) {
    return mask.defined() ? std::optional(mask) : std::nullopt;
  }

  AttentionOptions attention_;
  bool has_share_ = false;
};

/// Attention whose scores others may give a bias by position.
class PositionBiased : public HeadedAttention {
 public:
  ~PositionBiased() override;
  using HeadedAttention::HeadedAttention;

  /// Null: none.
  void set_position_bias(std::shared_ptr<PositionBias> bias) {
    TUTTI_CHECK(!bias || !has_share(),
                "attention: a bias by position (ALiBi) is of all heads, of which this rank has a "
                "share; leave it out, or tensor_parallel()");
    bias_ = std::move(bias);
  }
  [[nodiscard]] const std::shared_ptr<PositionBias>& position_bias() const { return bias_; }

  void take_share(std::int64_t shares) override {
    TUTTI_CHECK_VALUE(!bias_,
                      "attention: there is a bias by position (ALiBi), which is of all heads, and "
                      "a rank would have a share of them; leave out one of the two");
    HeadedAttention::take_share(shares);
  }

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
#include <tutti/nn/attention.inl.hpp>
#endif
