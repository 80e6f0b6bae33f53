// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/profiler/simple_profiler.hpp>

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
