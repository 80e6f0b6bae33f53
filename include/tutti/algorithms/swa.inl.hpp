// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/swa.hpp>

namespace tutti::functional {

TUTTI_INLINE void WeightMean::update(const torch::nn::Module& model, bool average_buffers,
                                     const dist::Sharding* sharding) {
  const auto weights = ::tutti::detail::weights_of(model, /*trainable=*/false, sharding);
  if (count_ == 0) {
    for (const auto& [name, weight] : weights) {
      means_.emplace_back(name, weight.detach().clone());
    }
  } else {
    check(weights);
    const auto buffers = buffers_of(model);
    ::tutti::detail::AverageLists lists;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor& weight = weights[i].second;
      at::Tensor& mean = means_[i].second;
      mean = mean.to(weight.device());
      const bool copies = !average_buffers && buffers.contains(weight.unsafeGetTensorImpl());
      lists.add(mean, weight, copies);
    }
    lists.find_infinities();
    const auto n = static_cast<double>(count_);
    lists.update(n / (n + 1), /*average_integers=*/false);
  }
  ++count_;
}

TUTTI_INLINE void WeightMean::cut(const torch::nn::Module& model, const dist::Sharding& sharding) {
  const auto now = ::tutti::detail::tensors_by_name(model);
  for (auto& [name, mean] : means_) {
    if (const auto found = now.find(name); found != now.end()) {
      mean = ::tutti::detail::part_of(sharding, found->second, mean);
    }
  }
}

TUTTI_INLINE void WeightMean::copy_to(const torch::nn::Module& model,
                                      const dist::Sharding* sharding) const {
  const auto weights = ::tutti::detail::weights_of(model, /*trainable=*/false, sharding);
  check(weights);
  const auto buffers = buffers_of(model);
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    at::Tensor weight = weights[i].second;
    if (weight.requires_grad() || buffers.contains(weight.unsafeGetTensorImpl())) {
      weight.copy_(means_[i].second);
    }
  }
}

TUTTI_INLINE void WeightMean::save(Archive& archive) const {
  archive.put("count", count_);
  Archive& weights = archive.child("weights");
  for (const auto& [name, mean] : means_) {
    weights.put(name, mean);
  }
}

TUTTI_INLINE void WeightMean::load(const Archive& archive) {
  count_ = archive.get<std::int64_t>("count");
  means_.clear();
  const Archive& weights = archive.child("weights");
  for (const std::string& name : weights.names()) {
    means_.emplace_back(name, weights.tensor(name).clone());
  }
}

TUTTI_INLINE void WeightMean::check(const ::tutti::detail::NamedTensorList& weights) const {
  TUTTI_CHECK(weights.size() == means_.size(), "SWA: the model has ", weights.size(),
              " tensors, expected ", means_.size(),
              " as when averaging began; replace layers before that, and resume with the same "
              "model");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto& [name, weight] = weights[i];
    TUTTI_CHECK(name == means_[i].first && weight.sizes() == means_[i].second.sizes(),
                "SWA: the model's tensor \"", name, "\" is ", weight.sizes(), ", expected \"",
                means_[i].first, "\" of ", means_[i].second.sizes(),
                " as when averaging began; replace layers before that, and resume with the same "
                "model");
  }
}

}  // namespace tutti::functional

namespace tutti::detail {

TUTTI_INLINE bool has_batch_statistics(const torch::nn::Module& model) {
  for (const auto& buffer : model.named_buffers()) {
    if (buffer.key().ends_with("running_mean") && buffer.value().defined()) {
      return true;
    }
  }
  return false;
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE double swa_learning_rate(double from, double to, std::int64_t updates,
                                      std::int64_t anneal_steps, Anneal strategy) {
  TUTTI_CHECK_VALUE(anneal_steps >= 1, "swa_learning_rate: anneal_steps is ", anneal_steps,
                    ", expected 1 or more");
  const double part =
      std::min(1.0, static_cast<double>(updates) / static_cast<double>(anneal_steps));
  const double share =
      strategy == Anneal::linear ? part : (1 - std::cos(std::numbers::pi * part)) / 2;
  return to * share + from * (1 - share);
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void SWA::apply(BatchStart, State& state) {
  if (static_cast<std::int64_t>(run.recent->size()) >= refresh_batches) {
    run.recent->erase(run.recent->begin());
  }
  run.recent->push_back(state.batch);
}

TUTTI_INLINE void SWA::save(Archive& archive) const {
  archive.put("started", run.started);
  archive.put("completed", run.completed);
  archive.put("elapsed", run.elapsed);
  archive.put("initial_lrs", *run.initial_lrs);
  run.mean->save(archive.child("mean"));
}

TUTTI_INLINE void SWA::load(const Archive& archive) {
  run.started = archive.get<bool>("started");
  run.completed = archive.get<bool>("completed");
  run.elapsed = archive.get<std::int64_t>("elapsed");
  run.initial_lrs = archive.get<std::vector<double>>("initial_lrs");
  run.mean->load(archive.child("mean"));
}

TUTTI_INLINE bool SWA::reached(Time time, const State& state) {
  return time.is_fraction() ? state.progress().elapsed_fraction().value_or(0) >= time.value()
                            : state.timestamp >= time;
}

}  // namespace tutti
