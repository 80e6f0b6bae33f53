// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

// Whether, and when, a run that has failed starts again.

namespace tutti::dist::detail {

/// Counts the restarts of a run. A program that would fail at once again is not started again.
class Restarts {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// most: restarts in all. delay: before the first; it doubles up to 30 s. min_uptime: two
  /// failures in a row, each sooner than that after its start, end the run; 0: they do not.
  Restarts(int most, Milliseconds delay, Milliseconds min_uptime)
      : most_(most), delay_(delay), min_uptime_(min_uptime) {}

  /// How many there have been.
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] int most() const noexcept { return most_; }

  /// After an attempt that has ended with `status`, not 0, and lasted for `uptime`.
  ///
  /// Returns the pause before the next attempt; nothing when there is none: see why_not().
  std::optional<Milliseconds> after(int status, Milliseconds uptime) {
    const bool soon = uptime < min_uptime_;
    const bool again = soon && failed_soon_;
    failed_soon_ = soon;
    why_not_ = count_ >= most_ ? (most_ == 0 ? "" : "no restart is left")
               : status == 2 || (status >= 64 && status <= 78) || (status >= 100 && status <= 114)
                   ? "it would fail again: status " + std::to_string(status) +
                         " is that of a program which cannot run as it was called"
               : again ? "it failed twice within " + seconds(min_uptime_) + " of its start"
                       : "";
    if (count_ >= most_ || !why_not_.empty()) {
      return std::nullopt;
    }
    ++count_;
    const Milliseconds pause = delay_;
    delay_ = std::min(2 * delay_, std::max(delay_, Milliseconds(30'000)));
    return pause;
  }

  [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }

  /// "1.2 s"
  static std::string seconds(Milliseconds time) {
    const auto tenths = (time.count() + 50) / 100;
    return std::to_string(tenths / 10) + '.' + std::to_string(tenths % 10) + " s";
  }

 private:
  int most_;
  Milliseconds delay_;
  Milliseconds min_uptime_;
  int count_ = 0;
  bool failed_soon_ = false;
  std::string why_not_;
};

}  // namespace tutti::dist::detail
