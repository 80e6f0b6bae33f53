// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/time_value.hpp>

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <stdexcept>

namespace tutti {

/// Where a run is: how much of everything has been done. A plain value; nothing changes one behind
/// a reader's back, so keep copies freely. Changing single fields of a copy is the way to
/// partial replacement: `auto t = state.timestamp; t.batch = 0;`.
///
/// Samples and tokens count all processes; a batch is one optimizer step of all of them.
/// Source: MosaicML Composer, `composer.core.Timestamp`.
struct Timestamp {
  using Duration = std::chrono::nanoseconds;

  std::int64_t iteration = 0;
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  std::int64_t sample = 0;
  std::int64_t token = 0;
  std::int64_t epoch_in_iteration = 0;
  std::int64_t token_in_iteration = 0;
  std::int64_t batch_in_epoch = 0;
  std::int64_t sample_in_epoch = 0;
  std::int64_t token_in_epoch = 0;
  Duration total_wct{0};      ///< Wall-clock time spent in training, evaluation excluded.
  Duration iteration_wct{0};  ///< Of the current iteration.
  Duration epoch_wct{0};      ///< Of the current epoch.
  Duration batch_wct{0};      ///< Of the last batch.

  friend constexpr bool operator==(const Timestamp&, const Timestamp&) = default;

  /// The timestamp one batch later. samples, tokens: over all processes; duration: of the batch.
  constexpr Timestamp to_next_batch(std::int64_t samples = 0, std::int64_t tokens = 0,
                                    Duration duration = Duration{0}) const {
    Timestamp next = *this;
    ++next.batch;
    ++next.batch_in_epoch;
    next.sample += samples;
    next.sample_in_epoch += samples;
    next.token += tokens;
    next.token_in_epoch += tokens;
    next.token_in_iteration += tokens;
    next.total_wct += duration;
    next.iteration_wct += duration;
    next.epoch_wct += duration;
    next.batch_wct = duration;
    return next;
  }

  /// The timestamp after the end of the current epoch.
  constexpr Timestamp to_next_epoch() const {
    Timestamp next = *this;
    ++next.epoch;
    ++next.epoch_in_iteration;
    next.clear_epoch();
    return next;
  }

  /// The timestamp after the end of the current iteration.
  constexpr Timestamp to_next_iteration() const {
    Timestamp next = *this;
    ++next.iteration;
    next.epoch_in_iteration = 0;
    next.token_in_iteration = 0;
    next.iteration_wct = Duration{0};
    next.clear_epoch();
    return next;
  }

  /// The counter of `unit`; for seconds the whole seconds of `total_wct`.
  ///
  /// Throws std::invalid_argument for TimeUnit::duration, which needs the length of the run
  /// (`Progress::elapsed`).
  constexpr Time get(TimeUnit unit) const {
    switch (unit) {
      case TimeUnit::iteration:
        return {iteration, unit};
      case TimeUnit::epoch:
        return {epoch, unit};
      case TimeUnit::batch:
        return {batch, unit};
      case TimeUnit::sample:
        return {sample, unit};
      case TimeUnit::token:
        return {token, unit};
      case TimeUnit::second:
        return {std::chrono::duration_cast<std::chrono::seconds>(total_wct).count(), unit};
      case TimeUnit::duration:
        break;
    }
    throw std::invalid_argument(
        "Timestamp: it has no counter for dur; ask Progress::elapsed(), which knows the length of "
        "the run.");
  }

  /// Compares the counter of `time`'s unit: `timestamp < "10ep"`.
  friend constexpr bool operator==(const Timestamp& a, Time time) {
    return a.get(time.unit()) == time;
  }
  friend constexpr std::strong_ordering operator<=>(const Timestamp& a, Time time) {
    return a.get(time.unit()) <=> time;
  }

 private:
  constexpr void clear_epoch() {
    batch_in_epoch = 0;
    sample_in_epoch = 0;
    token_in_epoch = 0;
    epoch_wct = Duration{0};
    batch_wct = Duration{0};
  }
};

/// All that a schedule or an interval needs to know about a run.
struct Progress {
  Timestamp timestamp{};
  Time max_duration{};               ///< Length of the run, in any unit but dur; 0: not known.
  std::int64_t dataloader_len = -1;  ///< Batches in an epoch; -1: not known.
  std::optional<Timestamp> previous_timestamp{};  ///< Before the last advance; none before any.

  /// The elapsed part of the run as a dur, counted in max_duration's own unit, hence in steps of
  /// one epoch when that unit is epochs. None when max_duration is not set.
  constexpr std::optional<Time> elapsed() const {
    if (!max_duration) {
      return std::nullopt;
    }
    return timestamp.get(max_duration.unit()) / max_duration;
  }

  /// The elapsed part of the run, in [0, 1] and beyond, in steps of one batch wherever the run's
  /// length can be counted that way: epochs are subdivided when dataloader_len is known, seconds
  /// are not rounded. None when max_duration is not set.
  constexpr std::optional<double> elapsed_fraction() const {
    if (!max_duration) {
      return std::nullopt;
    }
    const double whole = max_duration.value();
    if (max_duration.unit() == TimeUnit::epoch && dataloader_len > 0) {
      const double part =
          static_cast<double>(timestamp.batch_in_epoch) / static_cast<double>(dataloader_len);
      return (static_cast<double>(timestamp.epoch) + (part < 1.0 ? part : 1.0)) / whole;
    }
    if (max_duration.unit() == TimeUnit::second) {
      return std::chrono::duration<double>(timestamp.total_wct).count() / whole;
    }
    return elapsed()->value();
  }
};

}  // namespace tutti
