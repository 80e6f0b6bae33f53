// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/empty_like.h>

#include <tutti/algorithms/ema.hpp>

namespace tutti::functional {

TUTTI_INLINE EMAParameters::EMAParameters(const torch::nn::Module& model, bool exclude_buffers,
                                          const dist::Sharding* sharding)
    : exclude_buffers_(exclude_buffers) {
  for (auto& [name, weight] : ::tutti::detail::weights_of(model, /*trainable=*/true, sharding)) {
    names_.push_back(name);
    stored_.push_back(weight.detach().clone());
    weights_.push_back(weight);
  }
  note_copied(model);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    lists_.add(stored_[i], weights_[i], copied_[i] != 0);
  }
  lists_.find_infinities();
  version_ = next_version();
}

TUTTI_INLINE void EMAParameters::note_copied(const torch::nn::Module& model) {
  copied_.assign(names_.size(), 0);
  if (!exclude_buffers_) {
    return;
  }
  const auto buffers = model.named_buffers();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    copied_[i] = buffers.contains(names_[i]) ? 1 : 0;
  }
}

TUTTI_INLINE EMAParameters::EMAParameters(
    const torch::nn::Module& model, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
    bool exclude_buffers, const dist::Sharding* sharding)
    : exclude_buffers_(exclude_buffers) {
  for (const auto& [name, tensor] : tensors) {
    names_.push_back(name);
    stored_.push_back(tensor);
  }
  if (sharding != nullptr) {
    keep_parts(model, *sharding);
  }
  find_weights(model, sharding);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const at::Tensor like = weights_[i].detach();  // in device, type and strides
    stored_[i] = at::empty_like(like).copy_(stored_[i]);
  }
  link(model, sharding);
}

TUTTI_INLINE void EMAParameters::cut(const torch::nn::Module& model,
                                     const dist::Sharding& sharding) {
  keep_parts(model, sharding);
  link(model, &sharding);
}

TUTTI_INLINE void EMAParameters::keep_parts(const torch::nn::Module& model,
                                            const dist::Sharding& sharding) {
  const auto now = ::tutti::detail::tensors_by_name(model);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (const auto found = now.find(names_[i]); found != now.end()) {
      const bool has_values = ::tutti::detail::InitTape::of(stored_[i]) == nullptr;
      stored_[i] = has_values
                       ? ::tutti::detail::part_of(sharding, found->second, stored_[i])
                       : sharding.shard_of(found->second).detach().clone();  // what it is a copy of
    }
  }
}

TUTTI_INLINE void EMAParameters::find_weights(const torch::nn::Module& model,
                                              const dist::Sharding* sharding) {
  const auto now = ::tutti::detail::tensors_by_name(model, sharding);
  weights_.resize(names_.size());
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto found = now.find(names_[i]);
    TUTTI_CHECK(found != now.end(), "EMA: the model has no tensor \"", names_[i], "\", ",
                "of which there is an average; replace layers before averaging starts, and "
                "resume with the same model");
    TUTTI_CHECK(found->second.sizes() == stored_[i].sizes(), "EMA: \"", names_[i], "\" is ",
                found->second.sizes(), " in the model, expected ", stored_[i].sizes(),
                " as its average is; replace layers before averaging starts");
    weights_[i] = found->second;
  }
}

TUTTI_INLINE void EMAParameters::link(const torch::nn::Module& model,
                                      const dist::Sharding* sharding) {
  find_weights(model, sharding);
  note_copied(model);
  lists_ = {};
  for (std::size_t i = 0; i < names_.size(); ++i) {
    lists_.add(stored_[i], weights_[i], copied_[i] != 0);
  }
  lists_.find_infinities();
  version_ = next_version();
  done_.clear();
  rest_known_.clear();
}

TUTTI_INLINE void EMAParameters::join(optim::FusedStep& fused, double smoothing) {
  if (smoothing < 0.5) {
    return;  // rounds otherwise there
  }
  done_.assign(names_.size(), 0);
  joined_ = true;
  fused.averaging = {.averages = &stored_,
                     .weights = &weights_,
                     .version = version_,
                     .smoothing = smoothing,
                     .done = &done_};
}

TUTTI_INLINE void EMAParameters::finish_update(double smoothing, bool average_integers) {
  if (joined_) {
    rest().update(smoothing, average_integers);
    done_.assign(done_.size(), 0);
    joined_ = false;
  } else {
    update(smoothing, average_integers);
  }
}

TUTTI_INLINE void EMAParameters::copy_to(torch::nn::Module& model) const {
  EMAParameters other = *this;
  other.find_weights(model, nullptr);
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < stored_.size(); ++i) {
    other.weights_[i].copy_(stored_[i]);
  }
}

TUTTI_INLINE const ::tutti::detail::AverageLists& EMAParameters::rest() {
  if (rest_known_ != done_) {
    rest_known_ = done_;
    rest_ = {};
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (done_[i] == 0) {
        rest_.add(stored_[i], weights_[i], copied_[i] != 0);
      }
    }
    rest_.find_infinities();
  }
  return rest_;
}

TUTTI_INLINE void compute_ema(const torch::nn::Module& model, EMAParameters& ema_model,
                              double smoothing, bool average_integers) {
  ema_model.link(model);
  ema_model.update(smoothing, average_integers);
}

TUTTI_INLINE void compute_ema(const torch::nn::Module& model, torch::nn::Module& ema_model,
                              double smoothing, bool average_integers) {
  TUTTI_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, "EMA: smoothing is ", smoothing,
                    ", expected a number from 0 to 1");
  const auto weights = ::tutti::detail::tensors_by_name(model);
  ::tutti::detail::AverageLists lists;
  for (auto& [name, average] : ::tutti::detail::weights_of(ema_model, /*trainable=*/false)) {
    if (const auto found = weights.find(name); found != weights.end()) {
      lists.add(average.detach(), found->second);
    }
  }
  lists.find_infinities();
  lists.update(smoothing, average_integers);
}

TUTTI_INLINE double ema_smoothing(Time half_life, Time update_interval) {
  TUTTI_CHECK_VALUE(half_life.unit() == update_interval.unit(), "EMA: half_life is ",
                    to_string(half_life), " and update_interval ", to_string(update_interval),
                    ", expected both in ba or both in ep");
  TUTTI_CHECK_VALUE(half_life.value() > 0, "EMA: half_life is ", to_string(half_life),
                    ", expected more than 0");
  return std::exp2(-update_interval.value() / half_life.value());
}

TUTTI_INLINE double ema_warmup(std::int64_t step, double decay, double min_decay, double gamma,
                               double power) {
  TUTTI_CHECK_VALUE(gamma > 0 && power > 0, "EMA: warmup_gamma is ", gamma, " and warmup_power ",
                    power, ", expected more than 0");
  if (step <= 0) {
    return 0;
  }
  const double risen = 1 - std::pow(1 + static_cast<double>(step) / gamma, -power);
  return std::max(std::min(risen, decay), min_decay);
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE bool EMA::due(const State& state) const {
  if (!ema_start.is_fraction()) {
    return state.timestamp >= ema_start;
  }
  return state.progress().elapsed_fraction().value_or(0) >= ema_start.value();
}

TUTTI_INLINE std::vector<std::pair<std::string, at::Tensor>> EMA::side(bool in_model) const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (std::size_t i = 0; i < run.store->size(); ++i) {
    out.emplace_back(run.store->names()[i],
                     in_model ? run.store->weights()[i].detach() : run.store->stored()[i]);
  }
  return out;
}

// Puts the averages into the model, or takes them out; false: they are there, or are not.
TUTTI_INLINE bool EMA::exchange(bool averages_in_use) {
  if (run.averages_in_use == averages_in_use) {
    return false;
  }
  run.store->swap();
  run.averages_in_use = averages_in_use;
  return true;
}

TUTTI_INLINE void EMA::use_averages(State& state, bool yes) {
  if (exchange(yes) && detail::parts_of(state) != nullptr) {
    state.sharding->after_step();  // what is whole all the time has other shards now
  }
}

TUTTI_INLINE void EMA::average(State& state, std::int64_t count) {
  if (!run.started) {
    *run.store = functional::EMAParameters(*state.model, exclude_buffers, detail::parts_of(state));
    run.started = true;
    run.started_at = count;
  } else if (count % interval().count() == 0) {
    run.store->finish_update(factor_at(count), average_integers);
  }
}

TUTTI_INLINE void EMA::save(Archive& archive) const {
  archive.put("started", run.started);
  archive.put("started_at", run.started_at);
  archive.put("averages_in_use", run.averages_in_use);
  Archive& weights = archive.child("weights");
  for (std::size_t i = 0; i < run.store->size(); ++i) {
    weights.put(run.store->names()[i], run.store->stored()[i]);
  }
}

TUTTI_INLINE void EMA::load(const Archive& archive) {
  run.started = archive.get<bool>("started");
  run.started_at = archive.get_or<std::int64_t>("started_at", 0);  // older files lack it
  run.loaded = detail::LoadedAverages{};
  run.loaded->averages_in_use = archive.get<bool>("averages_in_use");
  if (archive.contains("weights")) {
    const Archive& weights = archive.child("weights");
    for (const std::string& key : weights.names()) {
      run.loaded->weights.emplace_back(key, weights.tensor(key));
    }
  }
}

TUTTI_INLINE void EMA::restore(State& state) {
  *run.store = functional::EMAParameters(*state.model, run.loaded->weights, exclude_buffers,
                                         detail::parts_of(state));
  run.averages_in_use = run.loaded->averages_in_use;
  run.loaded.reset();
  use_averages(state, false);
}

}  // namespace tutti
