// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "crash/child.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace crash {

/// A policy with a random stream and a number of its own.
struct Noise final {
  tutti::Rng rng{};
  std::int64_t count = 0;
  void apply(tutti::BeforeForward, tutti::State& state) {
    state.batch.inputs() = state.batch.inputs() + rng.uniform() + at::randn({1}) * 0.01;
    ++count;
  }
  void save(tutti::Archive& archive) const { archive.put("count", count); }
  void load(const tutti::Archive& archive) { count = archive.get<std::int64_t>("count"); }
};

inline tutti::TrainerOptions options(const std::string& folder, tutti::Time length) {
  return {.train = tiny::batches(7),
          .max_duration = length,
          .optimizer = tutti::DecoupledSGDW{.lr = 0.05, .momentum = 0.9},
          .schedule = tutti::CosineAnnealing{},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false,
          .save_folder = folder,
          .save_interval = "1ba",
          .save_num_checkpoints_to_keep = 2,
          .autoresume = true};
}

/// Trains to the end, from where the folder says, and leaves the weights at `result`.
template <class... Policies>
void train(const tutti::TrainerOptions& options, const std::string& result, Policies... policies) {
  auto model = tiny::net(1, 0.3);
  tutti::Trainer trainer(model, options, Noise{}, std::move(policies)...);
  trainer.fit();
  tutti::checkpoint::write_safetensors(result, {{"weights", tiny::flat(*model)}});
}

inline at::Tensor weights(const std::string& result) {
  return tutti::checkpoint::read_safetensors(result).at(0).second;
}

}  // namespace crash
