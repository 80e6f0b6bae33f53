// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/callbacks/activation_monitor.hpp>

namespace tutti::detail {

TUTTI_INLINE void ActivationSink::add(const std::string& name, const at::Tensor& activation) {
  if (activation.dim() == 0 || activation.numel() == 0 || !activation.is_floating_point()) {
    return;
  }
  const c10::AutoGradMode no_gradients(false);
  const at::Tensor x = activation.detach().to(at::kFloat);
  const at::Tensor centred = x.sub(x.mean(-1, /*keepdim=*/true)).square();  // [..., C]
  const at::Tensor kurtosis = centred.square().mean(-1).div(centred.mean(-1).square());
  names.push_back(name);
  numbers.push_back(
      at::stack({x.square().sum(-1).sqrt().mean(), x.mean(), x.amax(-1).mean(), kurtosis.mean()}));
}

TUTTI_INLINE at::Tensor ActivationProbe::forward(const at::Tensor& x) {
  at::Tensor y = below ? below(x) : layer->compute(x);
  sink->add(path + "_input.0", x);
  sink->add(path + "_output.0", y);
  return y;
}

TUTTI_INLINE void ActivationWatch::start(torch::nn::Module& model, const Keys& ignored) {
  stop();
  surgery::for_each<nn::Slotted>(model, [&](nn::Slotted& layer, const surgery::Visit& where) {
    for (const Key& word : ignored) {
      if (where.path.find(std::string_view(word)) != std::string::npos) {
        return;
      }
    }
    auto probe = std::make_shared<ActivationProbe>();
    probe->below = layer.slot();
    probe->layer = &layer;
    probe->path = where.path;
    probe->sink = &sink;
    layer.slot() = nn::Slot(probe);
    watched_.emplace_back(where.module, std::move(probe));
  });
}

TUTTI_INLINE void ActivationWatch::stop() {
  for (auto& [module, probe] : watched_) {
    probe->layer->slot() = probe->below;
  }
  watched_.clear();
}

}  // namespace tutti::detail

namespace tutti {

TUTTI_INLINE void ActivationMonitor::apply(FitStart, State& state) {
  if (interval.unit() == TimeUnit::batch && interval.count() < 10) {
    TORCH_WARN("ActivationMonitor: interval is ", to_string(interval),
               "; statistics of all layers this often slow training down, 10ba or more is usual");
  }
  run.watch->start(*state.model, ignore_module_types);
  TUTTI_CHECK(!run.watch->empty(),
              "ActivationMonitor: the model has no layer that can be watched, besides those in "
              "ignore_module_types; build it with the layers of tutti::nn instead of torch::nn, "
              "or take ActivationMonitor out of the recipe");
  run.watch->stop();
  run.last = -1;
}

TUTTI_INLINE bool ActivationMonitor::match(BeforeForward, const State& state) const {
  const std::int64_t now = state.timestamp.get(interval.unit()).count();
  return now % interval.count() == 0 && now != run.last && state.is_last_microbatch &&
         !state.is_ascent && state.logger.wants_metrics();
}

TUTTI_INLINE void ActivationMonitor::apply(BeforeTrainBatch, State&) {
  run.watch.reset();
  run.last = -1;
}

TUTTI_INLINE void ActivationMonitor::apply(BeforeForward, State& state) {
  run.last = state.timestamp.get(interval.unit()).count();
  run.watch->start(*state.model, ignore_module_types);
}

TUTTI_INLINE void ActivationMonitor::apply(AfterForward, State& state) {
  run.watch->stop();
  const detail::ActivationSink sink = std::exchange(run.watch->sink, {});
  if (sink.names.empty()) {
    return;
  }
  const at::Tensor numbers = at::stack(sink.numbers).to(at::kCPU, at::kDouble);  // [n, 4]
  constexpr const char* kinds[] = {"activations/l2_norm/", "activations/average/",
                                   "activations/max/", "activations/kurtosis/"};
  const double* number = numbers.const_data_ptr<double>();
  for (const std::string& activation : sink.names) {
    for (const char* kind : kinds) {
      const std::string key = kind + activation;
      state.log_metrics({{key, *number++}});
    }
  }
}

}  // namespace tutti
