// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/gradient_clipping.hpp>

namespace tutti::detail {

TUTTI_INLINE at::Tensor clip_norm(const std::vector<at::Tensor>& gradients, double threshold) {
  return all_on_cpu(gradients) ? host_scalar(clip_host_norm(gradients, threshold))
                               : clip_device_norm(gradients, threshold);
}

TUTTI_INLINE void clip_value(const std::vector<at::Tensor>& gradients, double threshold) {
  at::_ops::_foreach_clamp_min__Scalar::call(gradients, -threshold);
  at::_ops::_foreach_clamp_max__Scalar::call(gradients, threshold);
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void GradientClipping::apply(FitStart, State& state) {
  run.excluded->clear();
  const auto parameters = state.model->named_parameters();
  for (const std::string_view glob : exclude) {
    bool found = false;
    for (const auto& item : parameters) {
      if (checkpoint::glob_matches(glob, item.key())) {
        const at::Tensor& one = item.value();
        run.excluded->insert((state.sharding != nullptr ? state.sharding->shard_of(one) : one)
                                 .unsafeGetTensorImpl());
        found = true;
      }
    }
    TUTTI_CHECK_VALUE(found, "GradientClipping: exclude has \"", glob,
                      "\", which is the name of "
                      "no parameter of the model");
  }
}

TUTTI_INLINE void GradientClipping::apply(AfterTrainBatch, State& state) {
  detail::Gradients both;
  detail::each_parameter(state.optimizers, [&](const at::Tensor& parameter) {
    if (run.excluded->empty() || !run.excluded->contains(parameter.unsafeGetTensorImpl())) {
      both.add(parameter);
    }
  });
  if (folds_now(both, state)) {
    *run.norm =
        detail::fold_clipping(*state.fused_step, both.gradients, clipping_type, clipping_threshold);
  } else if (state.spread != nullptr) {
    *run.norm = detail::clip_spread(both, clipping_type, clipping_threshold, state);
  } else if (state.sharding != nullptr) {
    *run.norm = detail::clip_parts(both, clipping_type, clipping_threshold, adaptive_floor,
                                   state.sharding->shard_group());
  } else {
    *run.norm = detail::clip(both, clipping_type, clipping_threshold, adaptive_floor);
  }
}

TUTTI_INLINE void GradientClipping::apply(BatchEnd, State& state) {
  state.logger.log_metrics({{"gradient_clipping/norm", run.norm->item<double>()}},
                           state.previous_timestamp.batch);
  run.norm.reset();
}

TUTTI_INLINE bool GradientClipping::folds_now(const detail::Gradients& both,
                                              const State& state) const {
  return state.fused_step != nullptr && clipping_type != ClippingType::adaptive &&
         run.excluded->empty() && !both.gradients.empty() &&
         detail::all_on_one_device(both.gradients);
}

}  // namespace tutti

namespace tutti::detail {

TUTTI_INLINE double clip_host_norm(const std::vector<at::Tensor>& gradients, double threshold) {
  const double norm = host_norm(gradients);
  const double factor = threshold / (norm + 1e-6);
  if (factor >= 1) {  // not when the norm is NaN: then all gradients become NaN, as elsewhere
    return norm;
  }
  for (const at::Tensor& gradient : gradients) {
    if (is_small(gradient)) {
      auto* x = gradient.mutable_data_ptr<float>();
      const std::int64_t n = gradient.numel();
      for (std::int64_t i = 0; i < n; ++i) {
        x[i] *= static_cast<float>(factor);
      }
    } else {
      gradient.mul_(factor);
    }
  }
  return norm;
}

// min(1, threshold / (norm + 1e-6)) where the norm is.
TUTTI_INLINE at::Tensor device_factor(const at::Tensor& norm, double threshold) {
  return norm.add(1e-6).reciprocal_().mul_(threshold).clamp_max_(1);
}

TUTTI_INLINE at::Tensor clip_device_norm(const std::vector<at::Tensor>& gradients,
                                         double threshold) {
  const at::Tensor norm = device_norm(gradients);
  at::_ops::_foreach_mul__Tensor::call(gradients, device_factor(norm, threshold));
  return norm;
}

// Norms by unit: of each slice of dimension 0, [N, 1, ...]; of the whole when there are no others.
TUTTI_INLINE at::Tensor unit_norms(const at::Tensor& x) {
  if (x.dim() < 2) {
    return x.norm(2, norm_type(x.scalar_type()));
  }
  std::vector<std::int64_t> others;
  for (std::int64_t d = 1; d < x.dim(); ++d) {
    others.push_back(d);
  }
  return x.norm(2, others, /*keepdim=*/true, norm_type(x.scalar_type()));
}

// The same for a small contiguous parameter and gradient, one unit after the other.
TUTTI_INLINE void clip_units(const at::Tensor& parameter, const at::Tensor& gradient,
                             double threshold, double floor) {
  const std::int64_t units = parameter.dim() < 2 ? 1 : parameter.size(0);
  const std::int64_t size = units == 0 ? 0 : parameter.numel() / units;
  const auto* w = parameter.const_data_ptr<float>();
  auto* g = gradient.mutable_data_ptr<float>();
  for (std::int64_t unit = 0; unit < units; ++unit, w += size, g += size) {
    const double limit = threshold * std::max(std::sqrt(squares(w, size)), floor);
    const double norm = std::sqrt(squares(g, size));
    const double ratio = limit / norm;
    if (ratio < 1) {  // not of NaN, as in the reference
      const auto factor = static_cast<float>(ratio);
      for (std::int64_t i = 0; i < size; ++i) {
        g[i] *= factor;
      }
    }
  }
}

TUTTI_INLINE void clip_adaptive(const Gradients& both, double threshold, double floor) {
  std::vector<at::Tensor> limits;
  std::vector<at::Tensor> norms;
  std::vector<at::Tensor> large;
  for (std::size_t i = 0; i < both.parameters.size(); ++i) {
    const at::Tensor& parameter = both.parameters[i];
    const at::Tensor& gradient = both.gradients[i];
    if (is_small(parameter) && is_small(gradient) && parameter.is_contiguous() &&
        gradient.is_contiguous()) {
      clip_units(parameter, gradient, threshold, floor);
    } else {
      limits.push_back(unit_norms(parameter));
      norms.push_back(unit_norms(gradient));
      large.push_back(gradient);
    }
  }
  if (large.empty()) {
    return;
  }
  at::_ops::_foreach_clamp_min__Scalar::call(limits, floor);
  at::_ops::_foreach_mul__Scalar::call(limits, threshold);
  at::_ops::_foreach_clamp_min__Scalar::call(norms, 1e-30);  // a gradient of 0 stays 0
  at::_ops::_foreach_div__List::call(limits, norms);
  for (at::Tensor& ratio : limits) {
    at::_ops::nan_to_num_::call(ratio, 1.0, std::nullopt, std::nullopt);
  }
  at::_ops::_foreach_clamp_max__Scalar::call(limits, 1);
  at::_ops::_foreach_mul__List::call(large, limits);
}

TUTTI_INLINE at::Tensor fold_clipping(optim::FusedStep& fused,
                                      const std::vector<at::Tensor>& gradients, ClippingType type,
                                      double threshold) {
  if (type == ClippingType::value) {
    fused.limit = threshold;
    return {};
  }
  if (!gradients.front().is_cpu()) {
    const at::Tensor norm = device_norm(gradients);
    fused.device_scale = device_factor(norm, threshold);
    return norm;
  }
  const double norm = host_norm(gradients);
  const double factor = threshold / (norm + 1e-6);
  fused.scale = factor >= 1 ? 1 : factor;
  return host_scalar(norm);
}

// The norm over the parts of all ranks is one number more to send.
TUTTI_INLINE at::Tensor clip_norm_parts(const std::vector<at::Tensor>& gradients, double threshold,
                                        dist::Communicator& group) {
  const dist::CallPurpose clipping("clipping");
  if (!all_on_cpu(gradients)) {
    const at::Tensor norm = device_norm(gradients).square();
    group.all_reduce(norm);
    norm.sqrt_();
    at::_ops::_foreach_mul__Tensor::call(gradients, device_factor(norm, threshold));
    return norm;
  }
  const double mine = host_norm(gradients);
  const double norm = std::sqrt(group.all_reduce_value(mine * mine));
  const double factor = threshold / (norm + 1e-6);
  if (!(factor >= 1)) {
    at::_ops::_foreach_mul__Scalar::call(gradients, factor);
  }
  return host_scalar(norm);
}

// The units of a matrix are rows, which a rank has whole; a vector is one unit, of which each rank
// has some.
TUTTI_INLINE void clip_adaptive_parts(const Gradients& both, double threshold, double floor,
                                      dist::Communicator& group) {
  Gradients matrices;
  Gradients vectors;
  std::vector<at::Tensor> squares;
  for (std::size_t i = 0; i < both.parameters.size(); ++i) {
    const at::Tensor& parameter = both.parameters[i];
    const at::Tensor& gradient = both.gradients[i];
    Gradients& kind = parameter.dim() < 2 ? vectors : matrices;
    kind.parameters.push_back(parameter);
    kind.gradients.push_back(gradient);
    if (parameter.dim() < 2) {
      squares.push_back(parameter.detach().square().sum(at::kDouble));
      squares.push_back(gradient.square().sum(at::kDouble));
    }
  }
  clip_adaptive(matrices, threshold, floor);
  if (squares.empty()) {
    return;
  }
  const at::Tensor sums = at::_ops::stack::call(squares, 0);
  const dist::CallPurpose clipping("clipping");
  group.all_reduce(sums);
  const at::Tensor all = sums.sqrt().to(at::kCPU);
  const auto* norms = all.const_data_ptr<double>();
  for (const at::Tensor& gradient : vectors.gradients) {
    const double limit = threshold * std::max(*norms++, floor);
    const double ratio = limit / *norms++;
    if (ratio < 1) {
      gradient.mul_(ratio);
    }
  }
}

TUTTI_INLINE at::Tensor clip_parts(const Gradients& both, ClippingType type, double threshold,
                                   double floor, dist::Communicator& group) {
  const c10::AutoGradMode no_grad(false);
  if (both.gradients.empty()) {
    return {};
  }
  if (type == ClippingType::norm) {
    return clip_norm_parts(both.gradients, threshold, group);
  }
  if (type == ClippingType::adaptive) {
    clip_adaptive_parts(both, threshold, floor, group);
  } else {
    clip_value(both.gradients, threshold);
  }
  return {};
}

// What several ranks have alike counts once: each adds its share of it.
TUTTI_INLINE at::Tensor clip_spread(const Gradients& both, ClippingType type, double threshold,
                                    const State& state) {
  TUTTI_CHECK_VALUE(type != ClippingType::adaptive,
                    "GradientClipping: the model is spread over ranks by tensor_parallel(), and "
                    "clipping_type is adaptive, for norms of rows of which a rank may have a part; "
                    "take ClippingType::norm");
  const c10::AutoGradMode no_grad(false);
  if (type == ClippingType::value) {
    if (!both.gradients.empty()) {
      clip_value(both.gradients, threshold);
    }
    return {};
  }
  std::unordered_map<const void*, at::Tensor> wholes;  // by shard
  if (state.sharding != nullptr) {
    for (const dist::ShardedParameter& one : state.sharding->parameters()) {
      wholes.emplace(one.shard.unsafeGetTensorImpl(), one.whole);
    }
  }
  at::Tensor sum;
  for (std::size_t i = 0; i < both.gradients.size(); ++i) {
    const auto whole = wholes.find(both.parameters[i].unsafeGetTensorImpl());
    const int ranks =
        state.spread->ranks_with(whole == wholes.end() ? both.parameters[i] : whole->second);
    const at::Tensor own = both.gradients[i].to(at::kDouble).square().sum().div(ranks);
    sum = sum.defined() ? sum.add(own) : own;
  }
  if (!sum.defined()) {
    return {};
  }
  const dist::CallPurpose clipping("clipping");
  if (state.sharding != nullptr) {
    state.sharding->shard_group().all_reduce(sum);
  }
  state.spread->tensor_group()->all_reduce(sum);
  const at::Tensor norm = sum.sqrt();
  const at::Tensor factor = device_factor(norm, threshold);
  for (const at::Tensor& gradient : both.gradients) {
    gradient.mul_(factor);
  }
  return norm;
}

TUTTI_INLINE at::Tensor clip(const Gradients& both, ClippingType type, double threshold,
                             double floor) {
  TUTTI_CHECK_VALUE(type != ClippingType::unset,
                    "GradientClipping: clipping_type is not set; set "
                    "it to ClippingType::norm, value or adaptive.");
  const c10::AutoGradMode no_grad(false);
  if (both.gradients.empty()) {
    return {};
  }
  if (type == ClippingType::norm) {
    return clip_norm(both.gradients, threshold);
  }
  if (type == ClippingType::value) {
    clip_value(both.gradients, threshold);
  } else {
    clip_adaptive(both, threshold, floor);
  }
  return {};
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor apply_gradient_clipping(const std::vector<at::Tensor>& parameters,
                                                ClippingType clipping_type,
                                                double clipping_threshold, double adaptive_floor) {
  TUTTI_CHECK_VALUE(clipping_threshold > 0, "apply_gradient_clipping: clipping_threshold is ",
                    clipping_threshold, ", expected more than 0");
  ::tutti::detail::Gradients both;
  for (const at::Tensor& parameter : parameters) {
    both.add(parameter);
  }
  return ::tutti::detail::clip(both, clipping_type, clipping_threshold, adaptive_floor);
}

TUTTI_INLINE at::Tensor apply_gradient_clipping(const torch::nn::Module& model,
                                                ClippingType clipping_type,
                                                double clipping_threshold, double adaptive_floor) {
  return apply_gradient_clipping(model.parameters(), clipping_type, clipping_threshold,
                                 adaptive_floor);
}

}  // namespace tutti::functional
