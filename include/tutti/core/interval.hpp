// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/event.hpp>
#include <tutti/core/time.hpp>

#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace tutti {

/// At which events the end of training counts as due, whatever the interval.
enum class IntervalEnd : std::uint8_t {
  none,         ///< At none: only the interval counts.
  checkpoints,  ///< At BatchCheckpoint and EpochCheckpoint: what saving needs.
  fit_end,      ///< At FitEnd: what evaluation needs.
};

/// Says whether something periodic is due: saving, evaluating, generating, logging images.
///
///     struct Chime {
///       tutti::Interval interval{.every = "100ba"};
///       void apply(tutti::BatchCheckpoint e, tutti::State& state) {
///         if (interval(e, state.progress())) { ring(); }
///       }
///     };
///
/// Counters are watched for crossing a multiple of `every`, so a batch that jumps over several
/// multiples is due once. An `every` in ep is looked at on EpochCheckpoint, in iter on
/// IterationCheckpoint, otherwise on BatchCheckpoint; with `checkpoint_events` false on EpochEnd,
/// IterationEnd and BatchEnd. A dur is a fraction of max_duration, rounded up to whole batches when
/// the run is counted in epochs (which needs the loader's length), else to whole units of the run.
/// `every` of 0 or less is never due, nor is anything before the first batch.
///
/// The last batch of the run is due at the events of `at_end`, unless the interval itself was due
/// on that batch. As in the reference this can be true at both BatchCheckpoint and EpochCheckpoint:
/// remember the batch on which you acted.
///
/// Differences from the reference: a dur of 0 is never due (there a division by zero); a dur works
/// in runs counted in seconds or iterations too (there it is silently never due); only a run
/// counted in epochs needs the loader's length for it (there every run).
/// Source: MosaicML Composer, `composer.utils.misc.create_interval_scheduler`.
struct Interval {
  Time every{};
  IntervalEnd at_end = IntervalEnd::checkpoints;
  bool checkpoint_events = true;
  std::int64_t last_batch = -1;  ///< The batch on which the interval itself was last due.

  /// Whether it is due at event `E`; remembers the batch when the interval itself was.
  ///
  /// Throws std::invalid_argument when `every` is a dur and the run's length is not known.
  template <Event E>
  constexpr bool operator()(E, const Progress& progress) {
    if (ends<E>(progress)) {
      return true;
    }
    const bool due = passed<E>(progress);
    last_batch = due ? progress.timestamp.batch : last_batch;
    return due;
  }

  /// The same, without remembering: for a `match` that must not change anything.
  template <Event E>
  constexpr bool due(E, const Progress& progress) const {
    return ends<E>(progress) || passed<E>(progress);
  }

 private:
  template <class E>
  constexpr bool is_final() const {
    switch (at_end) {
      case IntervalEnd::none:
        return false;
      case IntervalEnd::checkpoints:
        return std::is_same_v<E, BatchCheckpoint> || std::is_same_v<E, EpochCheckpoint>;
      case IntervalEnd::fit_end:
        return std::is_same_v<E, FitEnd>;
    }
    return false;
  }

  template <class E>
  constexpr bool is_own() const {
    switch (every.unit()) {
      case TimeUnit::epoch:
        return checkpoint_events ? std::is_same_v<E, EpochCheckpoint> : std::is_same_v<E, EpochEnd>;
      case TimeUnit::iteration:
        return checkpoint_events ? std::is_same_v<E, IterationCheckpoint>
                                 : std::is_same_v<E, IterationEnd>;
      default:
        return checkpoint_events ? std::is_same_v<E, BatchCheckpoint> : std::is_same_v<E, BatchEnd>;
    }
  }

  constexpr bool never(const Progress& progress) const {
    return every.value() <= 0 || !progress.previous_timestamp;
  }

  template <class E>
  constexpr bool ends(const Progress& progress) const {
    if (never(progress) || !is_final<E>() || !progress.max_duration) {
      return false;
    }
    return progress.timestamp >= progress.max_duration && progress.timestamp.batch != last_batch;
  }

  template <class E>
  constexpr bool passed(const Progress& progress) const {
    if (never(progress) || !is_own<E>()) {
      return false;
    }
    const Time step = whole_step(progress);
    const std::int64_t before = progress.previous_timestamp->get(step.unit()).count();
    const std::int64_t now = progress.timestamp.get(step.unit()).count();
    return before / step.count() != now / step.count();
  }

  // The interval in a unit that is counted.
  constexpr Time whole_step(const Progress& progress) const {
    if (!every.is_fraction()) {
      return every;
    }
    const Time max = progress.max_duration;
    if (!max) {
      throw std::invalid_argument(
          "Interval: an interval in dur needs a max_duration; set one, or "
          "give the interval in ba or ep.");
    }
    if (max.unit() != TimeUnit::epoch) {
      return {ceil(max.value() * every.value()), max.unit()};
    }
    if (progress.dataloader_len <= 0) {
      throw std::invalid_argument(
          "Interval: an interval in dur of a run counted in epochs needs a dataloader whose length "
          "is known; give the interval in ba or ep.");
    }
    return Time::batches(
        ceil(max.value() * every.value() * static_cast<double>(progress.dataloader_len)));
  }

  static constexpr std::int64_t ceil(double value) {
    const auto whole = static_cast<std::int64_t>(value);
    return static_cast<double>(whole) < value ? whole + 1 : whole;
  }
};

}  // namespace tutti
