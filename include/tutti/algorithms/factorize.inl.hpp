// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/factorize.hpp>

namespace tutti::detail {

TUTTI_INLINE StateMapping StateMapping::unchanged() {
  const auto same = [](const at::Tensor& t) { return t; };
  return {same, same};
}

TUTTI_INLINE StateMapping StateMapping::product(const at::Tensor& left, const at::Tensor& right,
                                                at::IntArrayRef shape) {
  const auto map = [shape = shape.vec()](const at::Tensor& l, const at::Tensor& r) {
    return [l, r, shape](const at::Tensor& t) {
      at::Tensor y = t.flatten(1);
      y = l.defined() ? l.to(y.scalar_type()).matmul(y) : y;
      y = r.defined() ? y.matmul(r.to(y.scalar_type())) : y;
      return y.reshape(shape).contiguous();
    };
  };
  const auto squared = [](const at::Tensor& t) { return t.defined() ? t.square() : t; };
  return {map(left, right), map(squared(left), squared(right))};
}

TUTTI_INLINE bool map_state(torch::optim::OptimizerParamState& state, const at::Tensor& parameter,
                            const StateMapping& how) {
  const auto moved = [](const at::Tensor& t, const auto& f) { return t.defined() ? f(t) : t; };
  const auto adam = [&](auto& s) {
    s.exp_avg(moved(s.exp_avg(), how.linear));
    s.exp_avg_sq(moved(s.exp_avg_sq(), how.square));
    s.max_exp_avg_sq(moved(s.max_exp_avg_sq(), how.square));
  };
  if (auto* own = dynamic_cast<optim::ParameterState*>(&state)) {
    own->parameter = parameter;
    own->buffers = {moved(own->buffers[0], how.linear), moved(own->buffers[1], how.square),
                    moved(own->buffers[2], how.square)};
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    sgd->momentum_buffer(moved(sgd->momentum_buffer(), how.linear));
  } else if (auto* plain = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    adam(*plain);
  } else if (auto* decoupled = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    adam(*decoupled);
  } else {
    return false;
  }
  return true;
}

TUTTI_INLINE void OptimizerStateMigration::capture(const at::Tensor& before,
                                                   const at::Tensor& after,
                                                   const StateMapping& how) {
  const c10::AutoGradMode no_grad(false);
  for (torch::optim::Optimizer* optimizer : optimizers_) {
    const auto found = optimizer->state().find(before.unsafeGetTensorImpl());
    if (found == optimizer->state().end()) {
      continue;
    }
    std::unique_ptr<torch::optim::OptimizerParamState> state = found->second->clone();
    if (map_state(*state, after, how)) {
      noted_.push_back({optimizer, after, std::move(state)});
    }
  }
}

TUTTI_INLINE void OptimizerStateMigration::replace(const at::Tensor& before,
                                                   const at::Tensor& after) {
  for (torch::optim::Optimizer* optimizer : optimizers_) {
    for (auto& group : optimizer->param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        parameter = parameter.is_same(before) ? after : parameter;
      }
    }
    optimizer->state().erase(before.unsafeGetTensorImpl());
  }
}

TUTTI_INLINE void OptimizerStateMigration::restore() {
  for (auto& [optimizer, parameter, state] : noted_) {
    optimizer->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  noted_.clear();
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void Factorize::apply(Init, State& state) const {
  functional::apply_factorization(*state.model, options(), state.optimizers);
  state.logger.log_hyperparameters(
      {{"factorize/num_conv2d_replacements", surgery::count<nn::FactorizedConv2d>(*state.model)},
       {"factorize/num_linear_replacements", surgery::count<nn::FactorizedLinear>(*state.model)}});
}

TUTTI_INLINE void Factorize::prepare_load(const Archive& archive, State& state) {
  *run.ranks = archive.get<std::vector<std::int64_t>>("ranks");
  std::size_t i = 0;
  surgery::for_each<nn::Factorized>(*state.model,
                                    [&](nn::Factorized& layer, const surgery::Visit&) {
                                      if (i < run.ranks->size() && (*run.ranks)[i] < layer.rank()) {
                                        nn::Factorized::Factors now = layer.factors();
                                        now.a = now.a.narrow(0, 0, (*run.ranks)[i]);
                                        now.b = now.b.narrow(1, 0, (*run.ranks)[i]);
                                        detail::refactor(layer, now, state.optimizers);
                                      }
                                      ++i;
                                    });
}

TUTTI_INLINE void Factorize::lower_ranks(State& state) {
  state.parameters_replaced |=
      functional::refactorize(*state.model, refactorize_energy, state.optimizers) > 0;
  run.ranks->clear();
  double total = 0;
  surgery::for_each<nn::Factorized>(*state.model,
                                    [&](nn::Factorized& layer, const surgery::Visit&) {
                                      run.ranks->push_back(layer.rank());
                                      total += static_cast<double>(layer.rank());
                                    });
  state.log_metrics({{"factorize/total_rank", total}});
}

}  // namespace tutti

namespace tutti::detail {

TUTTI_INLINE void refactor(nn::Factorized& layer, const nn::Factorized::Factors& next,
                           const surgery::Optimizers& optimizers) {
  const nn::Factorized::Factors now = layer.factors();
  const nn::Factorized::Factors before = layer.parameters_by_role();
  const at::Tensor r = at::linalg_pinv(now.b, 1e-6).matmul(next.b);
  const at::Tensor t_transposed = at::linalg_pinv(now.a.t(), 1e-6).matmul(next.a.t());
  OptimizerStateMigration carried(optimizers);
  layer.set_factors(next);
  const nn::Factorized::Factors after = layer.parameters_by_role();
  carried.capture(before.a, after.a, StateMapping::product(r.t(), {}, after.a.sizes()));
  carried.capture(before.b, after.b, StateMapping::product({}, t_transposed, after.b.sizes()));
  carried.replace(before.a, after.a);
  carried.replace(before.b, after.b);
  if (before.bias.defined()) {
    carried.capture(before.bias, after.bias, StateMapping::unchanged());
    carried.replace(before.bias, after.bias);
  }
  carried.restore();
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE FactorizationReport apply_factorization(torch::nn::Module& model,
                                                     const FactorizationOptions& options,
                                                     const surgery::Optimizers& optimizers) {
  options.validate();
  const surgery::Options how = {.optimizers = optimizers, .who = "Factorize"};
  FactorizationReport report;
  ::tutti::detail::OptimizerStateMigration carried(optimizers);
  const auto split = [&]<class Layer>(std::int64_t width, std::int64_t minimum, double latent,
                                      const typename Layer::Impl::Plain& layer,
                                      const surgery::Visit& where, Layer*) -> surgery::Replacement {
    using Two = nn::FactorizedImpl<Layer>;
    if (where.inside<nn::Factorized>()) {
      return surgery::Replacement::keep("factored already");
    }
    if (width < minimum) {
      return surgery::Replacement::keep((Two::is_linear
                                             ? "features in or out below min_features, which is "
                                             : "channels in or out below min_channels, which is ") +
                                        std::to_string(minimum));
    }
    if (!Two::could_help(layer, latent)) {
      return surgery::Replacement::keep("two layers would take no less work than the one");
    }
    auto two = std::make_shared<Two>(layer, latent, !Two::is_linear && options.add_bias);
    ::tutti::detail::note_split<Layer>(carried, layer, *two);
    return two;
  };
  if (options.factorize_convs) {
    auto thin = [&](torch::nn::Conv2dImpl& layer, const surgery::Visit& where) {
      return split(std::min(layer.options.in_channels(), layer.options.out_channels()),
                   options.min_channels, options.latent_channels, layer, where,
                   static_cast<nn::Conv2d*>(nullptr));
    };
    report.convs = surgery::replace<nn::Conv2d>(model, thin, how);
  }
  if (options.factorize_linears) {
    auto thin = [&](torch::nn::LinearImpl& layer, const surgery::Visit& where) {
      return split(std::min(layer.options.in_features(), layer.options.out_features()),
                   options.min_features, options.latent_features, layer, where,
                   static_cast<nn::Linear*>(nullptr));
    };
    report.linears = surgery::replace<nn::Linear>(model, thin, how);
  }
  carried.restore();
  if (report.convs.replaced.empty() && report.linears.replaced.empty()) {
    surgery::Report all = report.convs;
    all.add(report.linears);
    surgery::report_none(options.if_none,
                         !options.factorize_convs     ? "Linear"
                         : !options.factorize_linears ? "Conv2d"
                                                      : "Conv2d or Linear",
                         how.who, all.kept);
  }
  return report;
}

TUTTI_INLINE std::int64_t refactorize(torch::nn::Module& model, double energy,
                                      const surgery::Optimizers& optimizers) {
  TUTTI_CHECK_VALUE(energy > 0 && energy <= 1, "refactorize: energy is ", energy,
                    ", expected a number above 0 and up to 1");
  std::int64_t changed = 0;
  surgery::for_each<nn::Factorized>(model, [&](nn::Factorized& layer, const surgery::Visit&) {
    if (!layer.is_intact()) {
      return;
    }
    const nn::Factorized::Factors next = layer.truncated(energy);
    if (next.a.size(0) < layer.rank() && next.a.any().item<bool>()) {
      ::tutti::detail::refactor(layer, next, optimizers);
      ++changed;
    }
  });
  return changed;
}

}  // namespace tutti::functional
