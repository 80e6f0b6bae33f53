// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include <tutti/callbacks/detail/comparison.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

/// Ends the run when a metric has not become better for a while.
///
///     EarlyStopper{.monitor = "MulticlassAccuracy", .dataloader_label = "test",
///                  .patience = "3ep"}
///
/// A value is a new best when it is better than the best by more than min_delta. The run stops when
/// more than `patience` has passed since the best. Looked at after each evaluation of that set
/// during fit, for the training set at EpochEnd, or at BatchEnd when patience is in batches.
///
/// Differences from the reference: a checkpoint keeps the best value and its time (there patience
/// begins anew); metrics with "entropy" in their names and those like MAE and FID count as losses,
/// see Comparison; any number is better than a first value that is NaN, which nothing would beat
/// there; eval() does not count.
/// Source: MosaicML Composer, `composer.callbacks.EarlyStopper`.
struct EarlyStopper final {
  Key monitor{};                                ///< the metric's name; obligatory
  Key dataloader_label{};                       ///< "train" or an evaluation set; obligatory
  Comparison comparison = Comparison::by_name;  ///< which value is better
  double min_delta = 0.0;                       ///< smaller changes do not count; >= 0
  Time patience = "1ep";                        ///< in ep or ba; >= 0

  /// What it holds while it runs; not an option.
  struct Run {
    Maybe<double> best{};         ///< value so far
    std::int64_t best_epoch = 0;  ///< when it was seen
    std::int64_t best_batch = 0;  ///< likewise
    bool standalone = false;      ///< in an evaluation outside fit
    bool ended = false;           ///< a fit came to its end
  } run{};

  static constexpr std::string_view name = "EarlyStopper";
  static constexpr About about{.reads_batch = false};
  static constexpr Role role = Role::callback;
  using events = types<Init, FitStart, EvalStandaloneStart, EvalStandaloneEnd, EvalEnd, EpochEnd,
                       BatchEnd, FitEnd>;

  /// Throws c10::ValueError when an option is missing or out of range.
  constexpr void validate() const {
    expect(!monitor.empty(), "EarlyStopper: monitor is empty; set it to the name of a metric.");
    expect(!dataloader_label.empty(),
           "EarlyStopper: dataloader_label is empty; set it to \"train\" or to the label of an "
           "evaluation set.");
    expect(min_delta >= 0, "EarlyStopper: min_delta", min_delta, "0 or more");
    expect(patience.unit() == TimeUnit::epoch || patience.unit() == TimeUnit::batch,
           "EarlyStopper: patience", patience, "a time in ep or ba");
    expect(patience.value() >= 0, "EarlyStopper: patience", patience, "0 or more");
  }

  bool match(EvalEnd, const State& state) const { return !run.standalone && concerns(state); }
  bool match(EpochEnd, const State& state) const { return concerns(state); }
  bool match(BatchEnd, const State& state) const {
    return patience.unit() == TimeUnit::batch && concerns(state);
  }

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

  /// Saves the best value and when it was.
  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  [[nodiscard]] bool concerns(const State& state) const {
    return state.dataloader_label == std::string_view(dataloader_label);
  }

  void look(State& state);
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/callbacks/early_stopper.inl.hpp>
#endif
