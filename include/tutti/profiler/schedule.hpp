// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <tutti/core/validate.hpp>

namespace tutti {

/// What a profiler does with a batch.
enum class ProfilerAction : std::uint8_t {
  skip,            ///< nothing
  warmup,          ///< records; the numbers may still be off
  active,          ///< records
  active_and_save  ///< records, and writes what has been recorded when the batch ends
};

/// "skip", "warmup", "active", "active_and_save".
constexpr std::string_view to_string(ProfilerAction action) {
  constexpr std::string_view names[] = {"skip", "warmup", "active", "active_and_save"};
  return names[static_cast<std::size_t>(action)];
}

/// Says which batches of every epoch are profiled: the first `skip_first` are not; then, `repeat`
/// times, `wait` are not, `warmup` warm up and `active` are, the last of which saves.
///
/// Source: MosaicML Composer, `composer.profiler.cyclic_schedule`.
struct CyclicSchedule {
  std::int64_t skip_first = 0;  ///< batches; >= 0
  std::int64_t wait = 0;        ///< batches; >= 0
  std::int64_t warmup = 1;      ///< batches; >= 0
  std::int64_t active = 4;      ///< batches; >= 1
  std::int64_t repeat = 1;      ///< cycles; 0: to the end of the epoch

  /// Throws c10::ValueError naming the number that is out of range.
  constexpr void validate() const {
    expect(skip_first >= 0, "CyclicSchedule: skip_first", skip_first, "0 or more");
    expect(wait >= 0, "CyclicSchedule: wait", wait, "0 or more");
    expect(warmup >= 0, "CyclicSchedule: warmup", warmup, "0 or more");
    expect(active >= 1, "CyclicSchedule: active", active, "1 or more");
    expect(repeat >= 0, "CyclicSchedule: repeat", repeat, "0 or more");
  }

  /// The action for a batch.
  ///
  /// batch: its number in the epoch, from 0. length: batches of the epoch, -1 when that is not
  /// known. resumed_at: the batch at which this epoch was resumed, from which skip_first counts.
  [[nodiscard]] constexpr ProfilerAction at(std::int64_t batch, std::int64_t length = -1,
                                            std::int64_t resumed_at = 0) const {
    const std::int64_t first = skip_first + resumed_at;
    const std::int64_t cycle = wait + warmup + active;
    if (batch < first || (repeat != 0 && batch >= first + cycle * repeat)) {
      return ProfilerAction::skip;
    }
    const std::int64_t place = (batch - first) % cycle;
    if (place < wait) {
      return ProfilerAction::skip;
    }
    if (place < wait + warmup) {
      return ProfilerAction::warmup;
    }
    return place == cycle - 1 || batch == length - 1 ? ProfilerAction::active_and_save
                                                     : ProfilerAction::active;
  }
};

}  // namespace tutti
