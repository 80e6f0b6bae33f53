// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/loggers/detail/columns.hpp>
#include <tutti/loggers/detail/terminal.hpp>
#include <tutti/loggers/detail/text.hpp>

namespace tutti::detail {

// What is known of something that makes progress. Pure; drawing is somebody else's.
struct Progression {
  struct Value {
    std::string text{};   // "test/MulticlassAccuracy=0.9722"
    std::string brief{};  // in place of it where there is no room; empty: nothing
  };

  std::string label{};  // "epoch 12/30"
  std::int64_t done = 0;
  std::int64_t total = -1;    // -1: unknown
  std::int64_t began_at = 0;  // what was done when the clock started
  double seconds = 0;         // on the clock
  double left = -1;           // seconds until all is done; negative: unknown
  std::string_view unit = "ba";
  std::vector<Value> values{};  // the most important ones first
};

// `fraction` of `width` columns, in eighths of a column where blocks can be drawn.
std::string blocks(double fraction, int width, bool unicode);

// The line: `epoch 12/30  52% loss=0.3541 test/Accuracy=0.9722 00:41 left 14.6ba/s |#####    |`.
//
// Of what does not fit into the look's width the least important is left out; a number is whole or
// absent. From 60 columns on a bar of 5 columns comes before the rate and the third value; below
// there is none.
std::string line_text(const Progression& what, const Look& look);

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

// "12.3ba/s", below one a second "2.5s/ba"; nothing where it is not known.
TUTTI_INLINE std::string rate_text(const Progression& what) {
  const double rate =
      what.seconds > 0 ? static_cast<double>(what.done - what.began_at) / what.seconds : 0;
  if (!(rate > 0) || !std::isfinite(rate)) {
    return {};
  }
  const double value = rate < 1 ? 1 / rate : rate;
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  const std::string unit(what.unit);
  return text + (rate < 1 ? "s/" + unit : unit + "/s");
}

// " 52%"; the number done where the total is not known.
TUTTI_INLINE std::string done_text(const Progression& what) {
  if (what.total < 0) {
    return std::to_string(what.done) + std::string(what.unit);
  }
  // Of whole numbers: as a fraction 29 of 100 is a little less than 29 %.
  const std::int64_t hundredths = what.total == 0 ? 100 : what.done * 100 / what.total;
  char text[16];
  std::snprintf(text, sizeof text, "%3d%%",
                static_cast<int>(std::clamp<std::int64_t>(hundredths, 0, 100)));
  return text;
}

// The parts of a line, chosen in the order of their importance and shown in that of their places.
class LineParts {
 public:
  // width: 0: all that is offered fits.
  explicit LineParts(int width) : width_(width) {}

  // Takes the part in if there is room, and `reserve` columns beside it. Returns whether it has.
  bool offer(int place, const std::string& text, std::string_view style = {}, int reserve = 0) {
    const int needs = columns(text) + (parts_.empty() ? 0 : 1);
    if (text.empty() || (width_ > 0 && used_ + needs + reserve > width_)) {
      return false;
    }
    used_ += needs;
    parts_.push_back({place, text, style});
    return true;
  }
  [[nodiscard]] int room() const { return width_ - used_; }

  [[nodiscard]] std::string joined(const Look& look) {
    std::stable_sort(parts_.begin(), parts_.end(),
                     [](const Part& a, const Part& b) { return a.place < b.place; });
    std::string line;
    for (const Part& part : parts_) {
      line += (line.empty() ? "" : " ") +
              (part.style.empty() ? part.text : look.in(part.style, part.text));
    }
    return line;
  }

 private:
  struct Part {
    int place;
    std::string text;
    std::string_view style;
  };

  int width_;
  int used_ = 0;
  std::vector<Part> parts_;
};

TUTTI_INLINE std::string line_text(const Progression& what, const Look& look) {
  constexpr int least = 60;       // columns of a line with a bar
  constexpr int shortest = 8;     // " |#####|"
  constexpr int longest = 28;     // the same with 25
  constexpr int after = 1 << 16;  // places behind all values
  const std::string left =
      what.left >= 0 && what.left < 1e9 ? clock_text(what.left) + " left" : std::string();
  LineParts parts(look.width);
  if (!parts.offer(0, what.label, "1")) {
    return std::string(cut(what.label, look.width));
  }
  const auto offer_value = [&](std::size_t i, int reserve) {
    const int place = 2 + static_cast<int>(i);
    const Progression::Value& value = what.values[i];
    return parts.offer(place, value.text, {}, reserve) ||
           parts.offer(place, value.brief, {}, reserve);
  };
  std::size_t i = 0;
  for (; i < what.values.size() && i < 2; ++i) {
    offer_value(i, 0);
  }
  parts.offer(1, done_text(what));
  parts.offer(after, left, "2");
  const bool draws = look.width >= least && what.total >= 0 && parts.room() >= shortest;
  const int reserve = draws ? shortest : 0;
  for (; i < what.values.size(); ++i) {
    offer_value(i, reserve);
  }
  parts.offer(after + 1, rate_text(what), "2", reserve);
  if (draws) {
    const double fraction =
        what.total == 0 ? 1 : static_cast<double>(what.done) / static_cast<double>(what.total);
    const int width = std::min(parts.room(), longest) - 3;
    parts.offer(after + 2, "|" + blocks(fraction, width, look.unicode) + "|", "36");
  }
  return parts.joined(look);
}

}  // namespace tutti::detail

#endif
