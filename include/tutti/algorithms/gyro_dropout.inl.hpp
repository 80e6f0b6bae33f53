// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/gyro_dropout.hpp>

namespace tutti {

TUTTI_INLINE void GyroDropout::apply(FitStart, State& state) {
  const std::int64_t batches = length_of(state);
  const Rng rng = Rng::for_policy(state.rank_zero_seed, name);
  functional::apply_gyro_dropout(*state.model, batches, 1, p, sigma, tau, rng, if_none);
  run.layers->clear();
  surgery::for_each<nn::GyroDropout>(
      *state.model, [&](nn::GyroDropoutImpl& layer, const surgery::Visit& where) {
        layer.options.period = batches / sigma * tau;
        (*run.layers)[where.path] = std::static_pointer_cast<nn::GyroDropoutImpl>(where.module);
        if (const auto found = run.saved->find(where.path); found != run.saved->end()) {
          layer.set_state(found->second);
        }
      });
  run.saved.reset();
  run.ascent = -1;
}

TUTTI_INLINE void GyroDropout::apply(BeforeTrainBatch, State& state) {
  for (auto& [path, layer] : *run.layers) {
    if (state.is_ascent) {
      (*run.before)[path] = layer->state();
    } else {
      layer->set_state((*run.before)[path]);
    }
  }
  run.ascent = state.is_ascent ? state.timestamp.batch : -1;
}

TUTTI_INLINE void GyroDropout::save(Archive& archive) const {
  Archive& all = archive.child("layers");
  for (const auto& [path, layer] : *run.layers) {
    layer->save_state(all.child(path));
  }
}

TUTTI_INLINE void GyroDropout::load(const Archive& archive) {
  const Archive& all = archive.child("layers");
  for (const std::string& path : all.names()) {
    (*run.saved)[path] = nn::GyroDropoutImpl::load_state(all.child(path));
  }
}

TUTTI_INLINE std::int64_t GyroDropout::length_of(const State& state) const {
  const Time length = state.max_duration;
  TUTTI_CHECK_VALUE(length.unit() == TimeUnit::batch || length.unit() == TimeUnit::epoch,
                    "GyroDropout: max_duration is ", to_string(length),
                    ", expected a time in ep or ba, from which the number of batches follows");
  if (length.unit() == TimeUnit::batch) {
    return length.count();
  }
  TUTTI_CHECK_VALUE(state.train_dataloader_len > 0, "GyroDropout: the number of batches in an ",
                    "epoch is not known; give max_duration in ba");
  return length.count() * state.train_dataloader_len;
}

}  // namespace tutti

namespace tutti::functional {

TUTTI_INLINE surgery::Report apply_gyro_dropout(torch::nn::Module& model,
                                                std::int64_t iters_per_epoch,
                                                std::int64_t max_epoch, double p,
                                                std::int64_t sigma, std::int64_t tau,
                                                const Rng& rng, surgery::IfNone if_none) {
  const std::int64_t batches = iters_per_epoch * max_epoch;
  TUTTI_CHECK_VALUE(sigma >= 1 && batches >= sigma, "GyroDropout: the training has ", batches,
                    " batches and sigma is ", sigma,
                    ", expected at least as many batches as masks; lower sigma");
  const nn::GyroDropoutOptions options{
      .p = p, .sigma = sigma, .tau = tau, .period = batches / sigma * tau};
  const bool has_some = surgery::count<nn::GyroDropout>(model) > 0;
  return surgery::replace<nn::Dropout>(
      model,
      [&](torch::nn::DropoutImpl&, const surgery::Visit& where) {
        const Rng own = Rng::for_policy(rng.seed() ^ rng.stream(), where.path);
        return std::make_shared<nn::GyroDropoutImpl>(options, own);
      },
      {.if_none = has_some ? surgery::IfNone::ignore : if_none, .who = "GyroDropout"});
}

}  // namespace tutti::functional
