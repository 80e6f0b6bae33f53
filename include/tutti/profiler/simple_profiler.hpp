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

#include <algorithm>
#include <array>

namespace tutti {

TUTTI_INLINE void SimpleProfiler::begin(const State& state) {
  run = Run{};
  run.speaks = state.rank == 0;
}

TUTTI_INLINE void SimpleProfiler::open(std::string_view span) {
  const auto found = run.open.find(span);
  if (found != run.open.end()) {
    found->second = Clock::now();
  } else {
    run.open.emplace(span, Clock::now());
  }
}

TUTTI_INLINE void SimpleProfiler::record_event(std::string_view event) {
  end_policy();
  if (detail::opens(event)) {
    return;
  }
  const detail::ShortName pair = detail::canonical(event);
  const std::string_view span(pair.text, pair.size);
  const auto began = run.open.find(span);
  if (began != run.open.end()) {
    const auto found = run.spans.find(span);
    Span& one = found != run.spans.end() ? found->second : run.spans[std::string(span)];
    one.total += Clock::now() - began->second;
    ++one.calls;
    run.open.erase(began);
  }
}

TUTTI_INLINE void SimpleProfiler::record_policy(std::string_view event, std::string_view policy,
                                                Role) {
  end_policy();
  if (policy == name || run.open.empty()) {  // no fit runs
    return;
  }
  run.policy = &run.policies[{event, std::string(policy)}];
  ++run.policy->calls;
  run.policy_began = Clock::now();
}

TUTTI_INLINE std::string SimpleProfiler::report() const {
  struct Line {
    std::string what;
    Span span;
  };
  std::vector<Line> lines;
  for (const auto& [what, span] : run.spans) {
    lines.push_back({what == "dataloader" ? "wait for the loader" : what, span});
  }
  for (const auto& [key, span] : run.policies) {
    lines.push_back({key.second + " at " + std::string(key.first), span});
  }
  const auto ms = [](Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.span.total > b.span.total; });
  const auto fit = run.spans.find("fit");
  const double whole = fit != run.spans.end() ? ms(fit->second.total)
                       : lines.empty()        ? 0
                                              : ms(lines.front().span.total);
  std::string out;
  std::array<char, 256> text{};
  std::int64_t shown = 0;
  for (const Line& line : lines) {
    const double total = ms(line.span.total);
    const double percent = whole > 0 ? 100 * total / whole : 0;
    if (shown == rows || percent < least_percent) {
      break;
    }
    if (shown++ == 0) {
      std::snprintf(text.data(), text.size(), "%-44s %9s %12s %13s %7s\n", "what", "calls",
                    "mean ms", "total ms", "%");
      out += text.data();
    }
    std::snprintf(text.data(), text.size(), "%-44.120s %9lld %12.4f %13.3f %7.1f\n",
                  line.what.c_str(), static_cast<long long>(line.span.calls),
                  total / static_cast<double>(line.span.calls), total, percent);
    out += text.data();
  }
  return out;
}

TUTTI_INLINE void SimpleProfiler::show() {
  // The fit ends with this event, of which the other policies have had their turn.
  if (const auto began = run.open.find("fit"); began != run.open.end()) {
    run.spans["fit"] = {1, Clock::now() - began->second};
  }
  run.open.clear();
  if (stream != nullptr && run.speaks) {
    const std::string table = report();
    std::fwrite(table.data(), 1, table.size(), stream);
    std::fflush(stream);
  }
}

TUTTI_INLINE void SimpleProfiler::close(const State&) {
  end_policy();
  if (!run.open.empty()) {
    show();
  }
}

}  // namespace tutti

#endif
