// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>

namespace tutti {

/// Prints at the end of every fit() where its time went: a table of what the loop does and of every
/// policy, with calls, milliseconds and per cent.
///
///     what                              calls    mean ms     total ms        %
///     fit                                   1   8123.412     8123.412    100.0
///     backward                           1200      3.801     4561.200     56.1
///     forward                            1200      1.950     2340.000     28.8
///     wait for the loader                1210      0.311      376.310      4.6
///     MixUp at before_forward            1200      0.044       52.800      0.6
///
/// A line of the loop is the time from the first of two events to the second, the policies at both
/// left out, and has what is within it: `train_batch` has forward, loss and backward. On a GPU they
/// are times of the host, which waits for the device at few places; Profiler and TorchProfiler see
/// more. Every event costs about a tenth of a microsecond.
/// Source: Lightning, `lightning.pytorch.profilers.SimpleProfiler`.
struct SimpleProfiler final {
  static constexpr std::string_view name = "SimpleProfiler";
  static constexpr Role role = Role::logger;  // so that it sees an event's end
  using events = all_events;
  static constexpr Rules rules{.runs_last = ids<all_events>};

  std::FILE* stream = stderr;  ///< where the table goes, at rank 0; null: nowhere, see report()
  std::int64_t rows = 40;      ///< of the table at most, the slowest; >= 1
  double least_percent = 0;    ///< lines with a smaller part of the time are left out; in [0, 100)

  using Clock = std::chrono::steady_clock;

  /// What one line counts.
  struct Span {
    std::int64_t calls = 0;
    Clock::duration total{};
  };

  /// What it holds while it runs; not an option.
  struct Run {
    std::map<std::string, Span, std::less<>> spans{};
    std::map<std::string, Clock::time_point, std::less<>> open{};
    std::map<std::pair<std::string_view, std::string>, Span> policies{};  // by event and name
    Span* policy = nullptr;                                               // the one that runs
    Clock::time_point policy_began{};
    bool speaks = true;
  } run{};

  /// Throws c10::ValueError when an option is out of range.
  void validate() const {
    expect(rows >= 1, "SimpleProfiler: rows", rows, "1 or more");
    expect(least_percent >= 0 && least_percent < 100, "SimpleProfiler: least_percent",
           least_percent, "a number from 0 to below 100");
  }

  template <Event E>
  void apply(E, const State& state) {
    end_policy();
    if constexpr (std::is_same_v<E, FitStart>) {
      begin(state);
    }
    if constexpr (is_before<E>) {
      open(canonical_name<E>);
    }
    if constexpr (std::is_same_v<E, FitEnd>) {
      show();
    }
  }

  /// The table. Empty before the first fit().
  [[nodiscard]] std::string report() const;

  /// Prints the table of a fit that an exception has ended.
  void close(const State&);

  /// Called by the engine before the policies of an event: the end of a span leaves them out.
  void record_event(std::string_view event);

  /// Called by the engine when a policy runs at an event.
  void record_policy(std::string_view event, std::string_view policy, Role of);

 private:
  void begin(const State& state);
  void open(std::string_view span);
  void end_policy() {
    if (run.policy != nullptr) {
      run.policy->total += Clock::now() - run.policy_began;
      run.policy = nullptr;
    }
  }
  void show();
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/profiler/simple_profiler.inl.hpp>
#endif
