// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <tutti/callbacks/detail/comparison.hpp>
#include <tutti/config.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

/// Ends the run when a metric is better than a number.
///
///     ThresholdStopper{.monitor = "MulticlassAccuracy", .dataloader_label = "test",
///                      .threshold = 0.94}
///
/// Looked at after each evaluation of that set during fit, for the training set at EpochEnd, or at
/// every BatchEnd with stop_on_batch.
///
/// Differences from the reference: metrics with "entropy" in their names and those like MAE and FID
/// count as losses, see Comparison; eval() does not count.
/// Source: MosaicML Composer, `composer.callbacks.ThresholdStopper`.
struct ThresholdStopper final {
  Key monitor{};                                ///< the metric's name; obligatory
  Key dataloader_label{};                       ///< "train" or an evaluation set; obligatory
  Maybe<double> threshold{};                    ///< better than this ends the run; obligatory
  Comparison comparison = Comparison::by_name;  ///< which value is better
  bool stop_on_batch = false;                   ///< looks at the training set after every batch

  /// What it holds while it runs; not an option.
  struct Run {
    bool seen = false;        ///< the set has been looked at
    bool standalone = false;  ///< in an evaluation outside fit
    bool ended = false;       ///< a fit came to its end
  } run{};

  static constexpr std::string_view name = "ThresholdStopper";
  static constexpr About about{.reads_batch = false};
  static constexpr Role role = Role::callback;
  using events = types<Init, FitStart, EvalStandaloneStart, EvalStandaloneEnd, EvalEnd, EpochEnd,
                       BatchEnd, FitEnd>;

  /// Throws c10::ValueError when an option is missing.
  constexpr void validate() const {
    expect(!monitor.empty(), "ThresholdStopper: monitor is empty; set it to the name of a metric.");
    expect(!dataloader_label.empty(),
           "ThresholdStopper: dataloader_label is empty; set it to \"train\" or to the label of an "
           "evaluation set.");
    expect(static_cast<bool>(threshold),
           "ThresholdStopper: threshold is not set; set it to the value to reach.");
  }

  bool match(EvalEnd, const State& state) const { return !run.standalone && concerns(state); }
  bool match(EpochEnd, const State& state) const { return concerns(state); }
  bool match(BatchEnd, const State& state) const { return stop_on_batch && concerns(state); }

  /// Warns where it has to guess which value is better.
  void apply(Init, const State& state) const {
    detail::warn_of_direction(state, name, "comparison = Comparison", comparison, monitor);
  }
  /// Warns of a label that no evaluation set has.
  void apply(FitStart, const State& state) const {
    detail::warn_of_label(state, name, dataloader_label);
  }
  void apply(EvalStandaloneStart, State&) { run.standalone = true; }
  void apply(EvalStandaloneEnd, State&) { run.standalone = false; }
  void apply(EvalEnd, State& state) { look(state); }
  void apply(EpochEnd, State& state) { look(state); }
  void apply(BatchEnd, State& state) { look(state); }
  void apply(FitEnd, State&) { run.ended = true; }

  /// Warns of a set that a run which came to its end has never evaluated.
  void close(const State&) const;

 private:
  [[nodiscard]] bool concerns(const State& state) const {
    return state.dataloader_label == std::string_view(dataloader_label);
  }

  void look(State& state);
};

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti {

TUTTI_INLINE void ThresholdStopper::close(const State&) const {
  if (run.ended && !run.seen) {
    detail::warn_of_unseen_set(name, dataloader_label);
  }
}

TUTTI_INLINE void ThresholdStopper::look(State& state) {
  run.seen = true;
  const double value = detail::monitored(state, name, dataloader_label, monitor);
  if (detail::is_better(comparison, monitor, value, *threshold)) {
    state.stop_training();
  }
}

}  // namespace tutti

#endif
