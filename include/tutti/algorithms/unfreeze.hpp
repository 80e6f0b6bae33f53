// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/time.hpp>
#include <tutti/core/validate.hpp>

/// Unfreeze: the head is trained first, the layers below it later.
namespace tutti {

namespace functional {

/// Takes all layers of `model` but those of `train` out of training: their parameters require no
/// gradient any more. Parameters that one of those shares stay in training.
///
/// train: globs of paths of modules, "fc", "head.*"; empty: the last layer that owns parameters.
/// Returns how many layers were frozen.
/// Throws c10::Error (ValueError) when a glob matches no module.
std::int64_t freeze_all_but(torch::nn::Module& model, const Keys& train = {});

/// Gives the layers from the module `from` on, in the order of registration, back to training;
/// an empty `from`: all of them. Returns how many were given back.
/// Throws c10::Error (ValueError) when the model has no such module.
std::int64_t unfreeze_from(torch::nn::Module& model, std::string_view from = {});

}  // namespace functional

/// Trains the head alone until a time, and from then on the layers from one on as well.
///
///     Unfreeze{.at = "3ep", .from = "layer3"}                  // what is ahead of layer3 stays
///     frozen tutti::named<"all">(Unfreeze{.at = "6ep"})               // beside the first: all of
///     it
///
/// Several in one recipe give back more and more. Source: Howard and Ruder, "Universal Language
/// Model Fine-tuning for Text Classification", ACL 2018; fastai, `Learner.freeze_to`.
struct Unfreeze final {
  Time at{};     ///< when; "3ep", "500ba", "0.25dur". Obligatory
  Key from{};    ///< path of the first module that is trained then; empty: the whole model
  Keys train{};  ///< globs of the modules that are trained from the start; empty: the last layer
  bool freeze_statistics = true;  ///< frozen batch normalisation uses its running statistics

  /// What it holds while it runs; not an option.
  struct Run {
    bool open = false;  ///< the time has come

    /// Frozen layers with running statistics.
    Lazy<std::vector<std::shared_ptr<torch::nn::Module>>> still{};
  } run{};

  static constexpr std::string_view name = "Unfreeze";
  static constexpr About about{
      .reads_batch = false,
      .no_tensor_parallel = "it is not made for layers of which a rank has a part",
  };
  using events = types<Init, BeforeDataloader, BatchEnd, EpochEnd>;
  static constexpr Rules rules{
      .tags = {id<freezes_parameters>},
      .runs_after = {{id<changes_model>, "the layers are those that the surgeries leave"}},
      .conflicts_with = {{id<LayerFreezing>, "it takes out of training what this would give back"},
                         {id<LoRA>, "the model stays frozen beside adapters"}},
  };

  /// Throws c10::ValueError when `at` is missing.
  constexpr void validate() const {
    expect(at.value() > 0, "Unfreeze: at", at, "a time after the start, \"3ep\" or \"0.25dur\"");
  }

  bool match(BeforeDataloader, const State&) const { return !run.still->empty(); }
  bool match(BatchEnd, const State& state) const { return !run.open && is_due(state); }
  bool match(EpochEnd, const State& state) const { return !run.open && is_due(state); }

  /// Freezes all but the head, and logs `unfreeze/frozen_layers`.
  void apply(Init, State& state);

  /// Frozen statistics stay so, whatever train() said since.
  void apply(BeforeDataloader, State&);

  void apply(BatchEnd, State& state) { give_back(state); }
  void apply(EpochEnd, State& state) { give_back(state); }

  void save(Archive& archive) const { archive.put("open", run.open); }
  void load(const Archive& archive) { run.open = archive.get<bool>("open"); }

  /// Gives back what the saved run had given back, ahead of the optimizer's state.
  void prepare_load(const Archive& archive, State& state);

 private:
  [[nodiscard]] bool is_due(const State& state) const;
  void give_back(State& state);
  void find_still(State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/unfreeze.inl.hpp>
#endif
