// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/attention.hpp>

namespace tutti::nn {

TUTTI_INLINE bool SeenKeys::only_causal(const Positions& at) const {
  return !keep().defined() && at.causal && at.queries == at.keys && at.queries > 1 && !narrows(at);
}

TUTTI_INLINE at::Tensor SeenKeys::seen(const Positions& at, at::Device device) const {
  at::Tensor out = last(keep(), at.keys);
  if (at.causal && (at.queries > 1 || narrows(at))) {
    const at::Tensor past = causal(at, device);
    out = out.defined() ? out.logical_and(past) : past;
  }
  return out;
}

TUTTI_INLINE at::Tensor SeenKeys::added(const Positions& at, const at::Tensor& like,
                                        const at::Tensor& bias) const {
  if (shared_) {
    for (const Made& made : shared_->made) {
      if (made.at == at && made.type == like.scalar_type() && made.bias.is_same(bias)) {
        return made.added;
      }
    }
  }
  const at::Tensor out = make(at, like, bias);
  if (shared_) {
    shared_->made.push_back({at, like.scalar_type(), bias, out});
  }
  return out;
}

TUTTI_INLINE double SeenKeys::lowest(at::ScalarType type) {
  return type == at::kHalf       ? -65504.0
         : type == at::kBFloat16 ? -3.3895313892515355e38
                                 : static_cast<double>(std::numeric_limits<float>::lowest());
}

TUTTI_INLINE at::Tensor SeenKeys::causal(const Positions& at, at::Device device) {
  const std::int64_t before = at.keys - at.queries;
  const at::Tensor all =
      at::ones({at.queries, at.keys}, at::TensorOptions().dtype(at::kBool).device(device));
  const at::Tensor past = all.tril(before);
  return at.window > 0 ? past.triu(before - at.window + 1) : past;
}

TUTTI_INLINE at::Tensor SeenKeys::make(const Positions& at, const at::Tensor& like,
                                       const at::Tensor& bias) const {
  const at::Tensor seen = this->seen(at, like.device());
  const at::Tensor near = bias.defined() ? rounded(at, like, bias) : at::Tensor();
  if (!seen.defined()) {
    return near;
  }
  const at::Tensor unseen = seen.logical_not();
  return near.defined() ? near.masked_fill(unseen, lowest(near.scalar_type()))
                        : four(at::zeros(unseen.sizes(), like.options().requires_grad(false))
                                   .masked_fill_(unseen, lowest(like.scalar_type())));
}

TUTTI_INLINE at::Tensor SeenKeys::rounded(const Positions& at, const at::Tensor& like,
                                          const at::Tensor& bias) {
  const at::DeviceType device = like.device().type();
  const bool lowered = !like.is_meta() && like.scalar_type() != at::kDouble &&
                       at::autocast::is_autocast_enabled(device);
  const at::ScalarType type =
      lowered ? at::autocast::get_autocast_dtype(device) : like.scalar_type();
  at::Tensor out = four(bias);
  if (c10::elementSize(type) < c10::elementSize(out.scalar_type()) && out.size(-2) == 1) {
    const at::Tensor own = out.slice(-1, at.keys - at.queries).transpose(-2, -1);
    out = out.sub(own);  // [1, heads, queries, keys]
  }
  return out.to(type);
}

TUTTI_INLINE at::Tensor SeenKeys::four(at::Tensor x) {
  while (x.dim() < 4) {
    x = x.unsqueeze(0);
  }
  return x;
}

TUTTI_INLINE void HeadedAttention::take_share(std::int64_t shares) {
  const std::int64_t pairs = attention_.key_value_heads;
  TUTTI_CHECK_VALUE(
      shares >= 1 && attention_.heads % shares == 0 && (pairs % shares == 0 || shares % pairs == 0),
      "attention: ", attention_.heads, " heads, with ", pairs,
      " of keys and values, are to be shared by ", shares,
      " ranks; expected a number that divides the heads, and that divides those of "
      "keys and values or is a multiple of them");
  attention_.heads /= shares;
  attention_.key_value_heads = std::max<std::int64_t>(1, pairs / shares);
  has_share_ = true;
}

TUTTI_INLINE at::Tensor HeadedAttention::probabilities(const at::Tensor& q, const at::Tensor& k,
                                                       const SeenKeys& keys) const {
  at::Tensor scores = q.matmul(for_all_heads(k).transpose(-2, -1));
  const at::ScalarType type = scores.scalar_type();
  scores = attention_.scale ? scores.mul(*attention_.scale)
                            : scores.div(std::sqrt(static_cast<double>(q.size(-1))));
  if (const at::Tensor bias = bias_of(k.size(-2), scores); bias.defined()) {
    scores = scores.add(bias);  // fp32 where the bias is
  }
  if (const at::Tensor seen = keys.seen(positions(q, k), q.device()); seen.defined()) {
    scores = scores.masked_fill(seen.logical_not(), SeenKeys::lowest(scores.scalar_type()));
  }
  const bool raised = scores.scalar_type() != type;
  return raised ? scores.softmax(-1).to(type) : scores.softmax(-1);
}

TUTTI_INLINE at::Tensor HeadedAttention::attend(const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v, const SeenKeys& keys,
                                                Dropout& dropout) const {
  const double p = dropout && dropout->is_training() ? dropout->options.p() : 0.0;
  const bool replaced = dropout && dropout->slot();
  const bool in_kernel = !replaced && (p == 0 || (p < 1 && q.is_cuda()));
  const at::Tensor y = in_kernel ? in_one_kernel(q, k, v, keys, p)
                                 : dropout(probabilities(q, k, keys)).matmul(for_all_heads(v));
  return y.transpose(1, 2).flatten(2);
}

TUTTI_INLINE at::Tensor HeadedAttention::for_all_heads(const at::Tensor& x) const {
  const std::int64_t each = heads() / key_value_heads();
  return each == 1 ? x
                   : x.unsqueeze(2)
                         .expand({x.size(0), x.size(1), each, x.size(2), x.size(3)})
                         .reshape({x.size(0), heads(), x.size(2), x.size(3)});
}

TUTTI_INLINE at::Tensor HeadedAttention::in_one_kernel(const at::Tensor& q, const at::Tensor& k,
                                                       const at::Tensor& v, const SeenKeys& keys,
                                                       double drop) const {
  const SeenKeys::Positions at = positions(q, k);
  const at::Tensor bias = bias_of(at.keys, q);
  const bool only_causal = !bias.defined() && keys.only_causal(at);
  const at::Tensor added = only_causal ? at::Tensor() : keys.added(at, q, bias);
  if (at.queries == 1 && heads() != key_value_heads() && !bias.defined()) {
    // The heads that share keys are queries of one head: no key is repeated.
    const at::Tensor grouped =
        q.reshape({q.size(0), key_value_heads(), heads() / key_value_heads(), q.size(3)});
    return at::scaled_dot_product_attention(grouped, k, v, given(added), drop, false,
                                            attention_.scale)
        .reshape({q.size(0), heads(), 1, v.size(3)});
  }
  if (shares_heads(q)) {
    return at::scaled_dot_product_attention(q, k, v, given(added), drop, only_causal,
                                            attention_.scale, /*enable_gqa=*/true);
  }
  return at::scaled_dot_product_attention(q, for_all_heads(k), for_all_heads(v), given(added), drop,
                                          only_causal, attention_.scale);
}

TUTTI_INLINE bool HeadedAttention::shares_heads(const at::Tensor& q) const {
  constexpr bool cpu_kernel_does = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9;
  return cpu_kernel_does && q.is_cpu() && heads() != key_value_heads();
}

}  // namespace tutti::nn

namespace tutti::nn {

TUTTI_INLINE PositionBiased::~PositionBiased() = default;

}  // namespace tutti::nn
