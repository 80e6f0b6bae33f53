// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/optim/detail/parameter_groups.hpp>
#include <tutti/optim/shards.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

/// LibTorch's functions over lists of tensors, which are a few kernels on a GPU, and the steps that
/// rules written with them share.
namespace tutti::optim::detail {

using List = std::vector<at::Tensor>;

void mul_(const List& a, double factor);
void add_(const List& a, const List& b, double alpha);
void add_(const List& a, double number);
void div_(const List& a, const List& b);
void div_(const List& a, double number);
void addcmul_(const List& a, const List& b, const List& c, double value);
void addcdiv_(const List& a, const List& b, const List& c, double value);
void lerp_(const List& a, const List& b, double weight);
void maximum_(const List& a, const List& b);
void sqrt_(const List& a);
void sign_(const List& a);
void copy_(const List& to, const List& from);
List add(const List& a, const List& b, double alpha);
List add(const List& a, double number);
List mul(const List& a, double factor);
List mul(const List& a, const List& b);
List div(const List& a, double number);
List lerp(const List& a, const List& b, double weight);
List sqrt(const List& a);
List abs(const List& a);
List norms(const List& a);

/// average = beta * average + (1 - beta) * g^2
void follow_squares(const List& average, const List& gradients, double beta);

/// The gradients, or their negatives, with weight_decay times the weights: those of the bucket
/// where neither is asked for, else new ones.
List directions(const Bucket& bucket, bool maximize, double weight_decay);

/// p *= 1 - part
void decay_weights(const Bucket& bucket, double part);

/// Calls f with the bucket, on the CPU with buckets of a few of its parameters each: functions over
/// lists go through memory once each, and so find it in the cache.
void in_parts(const Bucket& bucket, c10::function_ref<void(const Bucket&)> f);

/// How LAMB and LARS measure a tensor's step.
struct Trust {
  double coefficient = 1;
  double decay = 0;
  double eps = 0;
  bool clip = false;
  double clip_at = 1;  ///< with clip, the ratio is divided by this and is at most 1
};

/// Multiplies every update by coefficient * |p| / (|measured| + decay * |p| + eps), or by 1 where
/// |p| or |measured| is 0. No value leaves the device.
void scale_by_trust(const List& updates, const List& parameters, const List& measured,
                    const Trust& trust);

/// Updates of rows of parameters.
struct TrustedUpdates {
  List updates;
  List parameters;
  List measured;
  std::optional<Trust> trust;  ///< none: they stay as they are
};

/// The same of parameters of which ranks have rows; one message for all of them.
void scale_by_trust(const std::vector<TrustedUpdates>& all, const Shards& shards);

void need_betas(std::string_view name, const std::array<double, 2>& betas);

}  // namespace tutti::optim::detail

#if TUTTI_BODIES

#include <tutti/core/detail/throw.hpp>

#include <ATen/ops/_foreach_abs_ops.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_copy_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_maximum_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/_foreach_sign_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/stack_ops.h>

namespace tutti::optim::detail {

TUTTI_INLINE void mul_(const List& a, double factor) {
  at::_ops::_foreach_mul__Scalar::call(a, factor);
}
TUTTI_INLINE void add_(const List& a, const List& b, double alpha) {
  at::_ops::_foreach_add__List::call(a, b, alpha);
}
TUTTI_INLINE void add_(const List& a, double number) {
  at::_ops::_foreach_add__Scalar::call(a, number);
}
TUTTI_INLINE void div_(const List& a, const List& b) {
  at::_ops::_foreach_div__List::call(a, b);
}
TUTTI_INLINE void div_(const List& a, double number) {
  at::_ops::_foreach_div__Scalar::call(a, number);
}
TUTTI_INLINE void addcmul_(const List& a, const List& b, const List& c, double value) {
  at::_ops::_foreach_addcmul__Scalar::call(a, b, c, value);
}
TUTTI_INLINE void addcdiv_(const List& a, const List& b, const List& c, double value) {
  at::_ops::_foreach_addcdiv__Scalar::call(a, b, c, value);
}
TUTTI_INLINE void lerp_(const List& a, const List& b, double weight) {
  at::_ops::_foreach_lerp__Scalar::call(a, b, weight);
}
TUTTI_INLINE void maximum_(const List& a, const List& b) {
  at::_ops::_foreach_maximum__List::call(a, b);
}
TUTTI_INLINE void sqrt_(const List& a) {
  at::_ops::_foreach_sqrt_::call(a);
}
TUTTI_INLINE void sign_(const List& a) {
  at::_ops::_foreach_sign_::call(a);
}
TUTTI_INLINE void copy_(const List& to, const List& from) {
  at::_ops::_foreach_copy_::call(to, from, false);
}
TUTTI_INLINE List add(const List& a, const List& b, double alpha) {
  return at::_ops::_foreach_add_List::call(a, b, alpha);
}
TUTTI_INLINE List add(const List& a, double number) {
  return at::_ops::_foreach_add_Scalar::call(a, number);
}
TUTTI_INLINE List mul(const List& a, double factor) {
  return at::_ops::_foreach_mul_Scalar::call(a, factor);
}
TUTTI_INLINE List mul(const List& a, const List& b) {
  return at::_ops::_foreach_mul_List::call(a, b);
}
TUTTI_INLINE List div(const List& a, double number) {
  return at::_ops::_foreach_div_Scalar::call(a, number);
}
TUTTI_INLINE List lerp(const List& a, const List& b, double weight) {
  return at::_ops::_foreach_lerp_Scalar::call(a, b, weight);
}
TUTTI_INLINE List sqrt(const List& a) {
  return at::_ops::_foreach_sqrt::call(a);
}
TUTTI_INLINE List abs(const List& a) {
  return at::_ops::_foreach_abs::call(a);
}
TUTTI_INLINE List norms(const List& a) {
  return at::_ops::_foreach_norm_Scalar::call(a, 2, std::nullopt);
}

TUTTI_INLINE void follow_squares(const List& average, const List& gradients, double beta) {
  mul_(average, beta);
  addcmul_(average, gradients, gradients, 1 - beta);
}

TUTTI_INLINE List directions(const Bucket& bucket, bool maximize, double weight_decay) {
  if (maximize) {
    const List turned = mul(bucket.gradients, -1.0);
    if (weight_decay != 0.0) {
      add_(turned, bucket.parameters, weight_decay);
    }
    return turned;
  }
  return weight_decay != 0.0 ? add(bucket.gradients, bucket.parameters, weight_decay)
                             : bucket.gradients;
}

TUTTI_INLINE void decay_weights(const Bucket& bucket, double part) {
  if (part != 0.0) {
    mul_(bucket.parameters, 1 - part);
  }
}

TUTTI_INLINE void in_parts(const Bucket& bucket, c10::function_ref<void(const Bucket&)> f) {
  constexpr std::int64_t elements = 1 << 16;
  std::int64_t all = 0;
  for (const at::Tensor& parameter : bucket.parameters) {
    all += parameter.numel();
  }
  if (!bucket.device.is_cpu() || all <= elements) {
    f(bucket);
    return;
  }
  Bucket part;
  part.device = bucket.device;
  part.type = bucket.type;
  part.step = bucket.step;
  part.first = bucket.first;
  part.mask = bucket.mask;
  part.scalars = bucket.scalars;
  std::int64_t size = 0;
  const auto flush = [&] {
    if (!part.parameters.empty()) {
      f(part);
    }
    size = 0;
    part.parameters.clear();
    part.gradients.clear();
    each_buffer(part.mask, [&](std::size_t b) { part.buffers[b].clear(); });
  };
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    if (size + bucket.parameters[i].numel() > elements) {
      flush();
    }
    size += bucket.parameters[i].numel();
    part.parameters.push_back(bucket.parameters[i]);
    part.gradients.push_back(bucket.gradients[i]);
    each_buffer(part.mask, [&](std::size_t b) { part.buffers[b].push_back(bucket.buffers[b][i]); });
  }
  flush();
}

// The same with these norms, an element for each update.
TUTTI_INLINE void scale_by_norms(const List& updates, const at::Tensor& weight,
                                 const at::Tensor& step, const Trust& trust) {
  at::Tensor ratio =
      weight.mul(trust.coefficient).div_(step.add(weight, trust.decay).add_(trust.eps));
  ratio.masked_fill_(weight.eq(0).logical_or_(step.eq(0)), 1.0);
  if (trust.clip) {
    ratio.div_(trust.clip_at).clamp_max_(1.0);
  }
  for (std::size_t i = 0; i < updates.size(); ++i) {
    updates[i].mul_(ratio[static_cast<std::int64_t>(i)]);
  }
}

TUTTI_INLINE void scale_by_trust(const List& updates, const List& parameters, const List& measured,
                                 const Trust& trust) {
  scale_by_norms(updates, at::_ops::stack::call(norms(parameters), 0),
                 at::_ops::stack::call(norms(measured), 0), trust);
}

TUTTI_INLINE void scale_by_trust(const std::vector<TrustedUpdates>& all, const Shards& shards) {
  List squares;
  for (const TrustedUpdates& one : all) {
    if (one.trust) {
      List norms_of = norms(one.parameters);
      for (at::Tensor& norm : norms(one.measured)) {
        norms_of.push_back(std::move(norm));
      }
      squares.push_back(at::_ops::stack::call(norms_of, 0).to(at::kDouble).square_().view({2, -1}));
    }
  }
  if (squares.empty()) {
    return;
  }
  const at::Tensor sums = at::_ops::cat::call(squares, 1);  // [2, updates]
  shards.sum(sums);
  sums.sqrt_();
  std::int64_t from = 0;
  for (const TrustedUpdates& one : all) {
    if (one.trust) {
      const auto count = static_cast<std::int64_t>(one.updates.size());
      const at::Tensor norms_of = sums.narrow(1, from, count);
      scale_by_norms(one.updates, norms_of[0], norms_of[1], *one.trust);
      from += count;
    }
  }
}

TUTTI_INLINE void need_betas(std::string_view name, const std::array<double, 2>& betas) {
  for (const double beta : betas) {
    TUTTI_CHECK_VALUE(beta >= 0.0 && beta < 1.0, name, ": betas are ", betas[0], " and ", betas[1],
                      ", expected two in [0, 1).");
  }
}

}  // namespace tutti::optim::detail

#endif
