// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
#include <tutti/core/validate.hpp>

/// BackboneFinetuning: a pretrained part is trained late, with a rate that grows to the head's.
namespace tutti {

/// Freezes a part of the model until an epoch; then its learning rate begins at a part of the
/// others' and grows by a factor with every epoch.
///
/// The part's parameters are a group of the optimizer of their own, from the start. A schedule
/// multiplies its rate as those of the others.
/// Source: Lightning, `lightning.pytorch.callbacks.BackboneFinetuning`.
struct BackboneFinetuning final {
  Key backbone{};  ///< path of the module, "model.backbone"; obligatory
  std::int64_t unfreeze_backbone_at_epoch = 10;  ///< the first epoch that trains it, from 0; >= 1
  double growth = 2;                             ///< of its rate with every epoch; > 0
  double backbone_initial_ratio_lr = 0.1;        ///< its first rate, of that of the others; > 0
  Maybe<double> backbone_initial_lr{};  ///< its first rate itself; > 0; not set: by the ratio
  bool should_align = true;             ///< its rate grows no higher than that of the others
  bool train_bn = true;  ///< its batch normalisation is trained as the others are, all the time;
                         ///< false: never, and its running statistics stay as they are

  /// What it holds while it runs; not an option.
  struct Run {
    bool open = false;  ///< the backbone is trained

    Lazy<std::vector<std::shared_ptr<torch::nn::Module>>>
        still{};  ///< layers whose statistics stay

    /// Which group of which optimizer the backbone's parameters were in, and which is their own.
    struct Group {
      std::size_t optimizer = 0;
      std::size_t of_the_others = 0;
      std::size_t own = 0;
    };
    Lazy<std::vector<Group>> groups{};
  } run{};

  static constexpr std::string_view name = "BackboneFinetuning";
  static constexpr About about{
      .reads_batch = false,
      .no_tensor_parallel = "it is not made for layers of which a rank has a part",
  };
  using events = types<Init, BeforeDataloader, EpochEnd>;
  static constexpr Rules rules{
      .tags = {id<freezes_parameters>, id<sets_learning_rate>},
      .runs_after = {{id<changes_model>, "the layers are those that the surgeries leave"}},
      .conflicts_with = {{id<LayerFreezing>, "it takes out of training what this would give back"},
                         {id<Unfreeze>, "both decide when layers are trained"},
                         {id<LoRA>, "the model stays frozen beside adapters"}},
  };

  /// Throws c10::ValueError when an option is missing or out of range.
  constexpr void validate() const {
    expect(!backbone.empty(),
           "BackboneFinetuning: backbone is empty; set it to the path of the pretrained module, "
           "\"backbone\".");
    expect(unfreeze_backbone_at_epoch >= 1, "BackboneFinetuning: unfreeze_backbone_at_epoch",
           unfreeze_backbone_at_epoch, "1 or more");
    expect(growth > 0, "BackboneFinetuning: growth", growth, "more than 0");
    expect(backbone_initial_ratio_lr > 0, "BackboneFinetuning: backbone_initial_ratio_lr",
           backbone_initial_ratio_lr, "more than 0");
    expect(!backbone_initial_lr || *backbone_initial_lr > 0,
           "BackboneFinetuning: backbone_initial_lr", *backbone_initial_lr, "more than 0");
  }

  bool match(BeforeDataloader, const State&) const { return !run.still->empty(); }

  /// Freezes the backbone, and gives its parameters groups of their own.
  void apply(Init, State& state);

  /// Frozen statistics stay so, whatever train() said since.
  void apply(BeforeDataloader, State&);

  /// Gives the backbone back when its epoch comes, and sets its rate for the next epoch, which it
  /// logs as `backbone_finetuning/lr`.
  void apply(EpochEnd, State& state);

  void save(Archive& archive) const { archive.put("open", run.open); }
  void load(const Archive& archive) { run.open = archive.get<bool>("open"); }

  /// Gives back what the saved run had given back, ahead of the optimizer's state.
  void prepare_load(const Archive& archive, State& state);

 private:
  void give_back(State& state);
  void set_rates(State& state) const;
  void find_still(State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/backbone_finetuning.inl.hpp>
#endif
