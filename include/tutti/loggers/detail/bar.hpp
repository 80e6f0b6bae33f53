// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/loggers/detail/text.hpp>

namespace tutti::detail {

// One progress bar: what is known about it, and its line. Pure; drawing is somebody else's.
struct Bar {
  std::string label{};  // with its padding
  std::int64_t done = 0;
  std::int64_t total = -1;    // -1: unknown
  std::int64_t began_at = 0;  // what was done when the clock started
  double seconds = 0;         // on the clock
  std::string_view unit = "ba";
  std::string values{};  // ", name=value" each
};

// `fraction` of `width` columns, in eighths of a column where blocks can be drawn.
std::string blocks(double fraction, int width, bool unicode);

// The line, at most `width` columns: `label 52%|####  | 12/23 [00:01<00:01, 11.50ba/s, a=1]`.
// The bar has 25 columns and gives way, down to 5, before values are cut off.
std::string bar_text(const Bar& bar, int width, bool unicode);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string blocks(double fraction, int width, bool unicode) {
  const int eighths = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width * 8);
  const int full = eighths / 8;
  std::string text;
  if (!unicode) {
    text.append(static_cast<std::size_t>(full), '#');
    return text.append(static_cast<std::size_t>(width - full), ' ');
  }
  for (int i = 0; i < full; ++i) {
    text += "\u2588";
  }
  if (full < width) {
    constexpr const char* part[] = {" ",      "\u258f", "\u258e", "\u258d",
                                    "\u258c", "\u258b", "\u258a", "\u2589"};
    text += part[eighths % 8];
    text.append(static_cast<std::size_t>(width - full - 1), ' ');
  }
  return text;
}

// "12.3ba/s", below one a second "2.5s/ba".
TUTTI_INLINE std::string rate_text(double per_second, std::string_view unit) {
  if (!(per_second > 0) || !std::isfinite(per_second)) {
    return "?" + std::string(unit) + "/s";
  }
  const bool slow = per_second < 1;
  const double value = slow ? 1 / per_second : per_second;
  char text[32];
  std::snprintf(text, sizeof text, value < 100 ? "%.2f" : "%.0f", value);
  return std::string(text) + (slow ? "s/" + std::string(unit) : std::string(unit) + "/s");
}

TUTTI_INLINE std::string bar_text(const Bar& bar, int width, bool unicode) {
  const double rate =
      bar.seconds > 0 ? static_cast<double>(bar.done - bar.began_at) / bar.seconds : 0;
  const std::string rest = clock_text(bar.seconds);
  const auto limit = static_cast<std::size_t>(std::max(width, 1));
  if (bar.total < 0) {
    std::string line = bar.label + std::to_string(bar.done) + std::string(bar.unit) + " [" + rest +
                       ", " + rate_text(rate, bar.unit) + bar.values + "]";
    return line.substr(0, limit);
  }
  const double fraction =
      bar.total == 0 ? 1 : static_cast<double>(bar.done) / static_cast<double>(bar.total);
  const auto rest_of_it = static_cast<double>(std::max<std::int64_t>(bar.total - bar.done, 0));
  const double left = rate > 0 ? rest_of_it / rate : std::numeric_limits<double>::infinity();
  char percent[16];  // of whole numbers: as a fraction 29 of 100 is a little less than 29 %
  const std::int64_t hundredths = bar.total == 0 ? 100 : bar.done * 100 / bar.total;
  std::snprintf(percent, sizeof percent, "%3d%%",
                static_cast<int>(std::clamp<std::int64_t>(hundredths, 0, 100)));
  const std::string head = bar.label + percent + "|";
  std::string tail = "| " + std::to_string(bar.done) + "/" + std::to_string(bar.total) + " [" +
                     rest + "<" + clock_text(left) + ", " + rate_text(rate, bar.unit) + bar.values +
                     "]";
  const int room = width - static_cast<int>(head.size() + tail.size());
  const int bar_width = std::clamp(room, 5, 25);
  const std::size_t used = head.size() + static_cast<std::size_t>(bar_width);
  if (used + tail.size() > limit) {
    tail.resize(limit > used ? limit - used : 0);
  }
  return head + blocks(fraction, bar_width, unicode) + tail;
}

}  // namespace tutti::detail

#endif
