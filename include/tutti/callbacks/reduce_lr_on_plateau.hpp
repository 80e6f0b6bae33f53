// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <torch/optim/optimizer.h>

#include <tutti/callbacks/detail/comparison.hpp>
#include <tutti/callbacks/detail/optimizer_label.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/tags.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

/// What ReduceLROnPlateau's threshold is of.
enum class ThresholdMode : std::uint8_t {
  relative,  ///< a part of the best value
  absolute,  ///< in the metric's own unit
};

/// Multiplies the learning rates by a factor when a metric has not become better for a while.
///
///     ReduceLROnPlateau{.monitor = "CrossEntropy", .dataloader_label = "test", .patience = 3}
///
/// Looks after each evaluation of that set during fit, for the training set at EpochEnd. A look
/// that finds nothing better than the best is a bad one; after more than `patience` bad ones in a
/// row the rates are reduced. Beside a schedule it is what the schedule multiplies that is reduced
/// and compared with min_lr and eps. A rate that was reduced is logged at once, by the name that
/// LRMonitor gives it.
///
/// Differences from the reference: mode may be told by the metric's name; one min_lr holds for all
/// groups.
/// Source: PyTorch, `torch.optim.lr_scheduler.ReduceLROnPlateau`.
struct ReduceLROnPlateau final {
  Key monitor{};                          ///< the metric's name; obligatory
  Key dataloader_label{};                 ///< "train" or an evaluation set; obligatory
  Comparison mode = Comparison::by_name;  ///< which value is better; PyTorch's "min" is less
  double factor = 0.1;                    ///< of the rates; in [0, 1)
  std::int64_t patience = 10;             ///< bad looks in a row that change nothing; >= 0
  double threshold = 1e-4;                ///< a value must be better by more than this; >= 0
  ThresholdMode threshold_mode = ThresholdMode::relative;  ///< what the threshold is of
  std::int64_t cooldown = 0;  ///< looks after a reduction that do not count as bad; >= 0
  double min_lr = 0.0;        ///< rates are not reduced below; >= 0
  double eps = 1e-8;          ///< a smaller change of a rate is not made; >= 0

  /// What it holds while it runs; not an option.
  struct Run {
    Maybe<double> best{};            ///< value so far
    std::int64_t bad = 0;            ///< bad looks in a row
    std::int64_t cooldown_left = 0;  ///< looks of the cooldown that are to come
    bool seen = false;               ///< the set has been looked at
    bool standalone = false;         ///< in an evaluation outside fit
    bool ended = false;              ///< a fit came to its end
  } run{};

  static constexpr std::string_view name = "ReduceLROnPlateau";
  static constexpr About about{
      .reads_batch = false,
      .reads_gradients = false,
  };
  static constexpr Role role = Role::callback;
  using events =
      types<Init, FitStart, EvalStandaloneStart, EvalStandaloneEnd, EvalEnd, EpochEnd, FitEnd>;
  static constexpr Rules rules{.tags = {id<sets_learning_rate>}};

  /// Throws c10::ValueError when an option is missing or out of range.
  constexpr void validate() const {
    expect(!monitor.empty(),
           "ReduceLROnPlateau: monitor is empty; set it to the name of a metric.");
    expect(!dataloader_label.empty(),
           "ReduceLROnPlateau: dataloader_label is empty; set it to \"train\" or to the label of "
           "an evaluation set.");
    expect(factor >= 0 && factor < 1, "ReduceLROnPlateau: factor", factor, "0 or more, below 1");
    expect(patience >= 0, "ReduceLROnPlateau: patience", patience, "0 or more");
    expect(threshold >= 0, "ReduceLROnPlateau: threshold", threshold, "0 or more");
    expect(cooldown >= 0, "ReduceLROnPlateau: cooldown", cooldown, "0 or more");
    expect(min_lr >= 0, "ReduceLROnPlateau: min_lr", min_lr, "0 or more");
    expect(eps >= 0, "ReduceLROnPlateau: eps", eps, "0 or more");
  }

  bool match(EvalEnd, const State& state) const { return !run.standalone && concerns(state); }
  bool match(EpochEnd, const State& state) const { return concerns(state); }

  /// Warns where it has to guess which value is better.
  void apply(Init, const State& state) const {
    detail::warn_of_direction(state, name, "mode = Comparison", mode, monitor);
  }
  /// Warns of a label that no evaluation set has.
  void apply(FitStart, const State& state) const {
    detail::warn_of_label(state, name, dataloader_label);
  }
  void apply(EvalStandaloneStart, State&) { run.standalone = true; }
  void apply(EvalStandaloneEnd, State&) { run.standalone = false; }
  void apply(EvalEnd, State& state) { look(state); }
  void apply(EpochEnd, State& state) { look(state); }
  void apply(FitEnd, State&) { run.ended = true; }

  /// Warns of a set that a run which came to its end has never evaluated.
  void close(const State&) const;

  /// Saves the best value and the counts; the rates are the optimizer's and the schedule's.
  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  [[nodiscard]] bool concerns(const State& state) const {
    return state.dataloader_label == std::string_view(dataloader_label);
  }
  [[nodiscard]] bool is_better(double value) const;

  void look(State& state);

  void reduce(State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/reduce_lr_on_plateau.inl.hpp>
#endif
