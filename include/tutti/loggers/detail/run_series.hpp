// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <tutti/config.hpp>

namespace tutti::detail {

// Neighbouring points of a curve. NaN and infinities are counted and are in nothing else.
struct Bucket {
  std::int64_t first = 0;  // steps
  std::int64_t last = 0;
  double time = 0;  // of the last point, in seconds since 1970
  double sum = 0;   // of the finite values
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  std::uint32_t finite = 0;
  std::uint32_t nan = 0;
  std::uint32_t above = 0;  // infinity
  std::uint32_t below = 0;  // -infinity

  [[nodiscard]] std::uint64_t points() const { return std::uint64_t{finite} + nan + above + below; }
  [[nodiscard]] std::int64_t middle() const { return first + (last - first) / 2; }
  // Of the finite values, of which there is one; a sum beyond the range of double is no excuse.
  [[nodiscard]] double mean() const { return std::clamp(sum / finite, low, high); }

  void add(std::int64_t step, double seconds, double value);
  void add(const Bucket& next);
};

// A curve of any length in bounded memory: while it has more than `most` buckets, pairs of them
// become one. Extremes are never lost, nor that there was a NaN.
class Series {
 public:
  static constexpr std::size_t most = 32768;

  // The value of the last step once more replaces it, unless it is in a wider bucket already; an
  // earlier step begins the curve anew there.
  void add(std::int64_t step, double seconds, double value);

  // Forgets what is at `step` and later; a bucket that reaches beyond it goes whole.
  void cut(std::int64_t step);

  // What is between two steps, in at most `count` buckets (>= 1) that cover equally many steps.
  [[nodiscard]] std::vector<Bucket> between(std::int64_t from, std::int64_t to,
                                            std::size_t count) const;

  [[nodiscard]] std::uint64_t points() const { return points_; }
  [[nodiscard]] bool empty() const { return buckets_.empty(); }
  [[nodiscard]] double latest() const { return latest_; }
  [[nodiscard]] std::int64_t last_step() const {
    return buckets_.empty() ? -1 : buckets_.back().last;
  }

 private:
  std::vector<Bucket> buckets_;
  std::uint64_t width_ = 1;  // points of a full bucket
  std::uint64_t points_ = 0;
  double latest_ = 0;
};

// A number as JSON of seven digits; what JSON lacks as the words of JSONLinesLogger.
void append_short(std::string& text, double value);

// {"x": [steps], "t": [seconds since `start`], "m": [means, null without a finite value],
//  "lo": [...], "hi": [...], "odd": [[place, NaNs, infinities, negative ones], ...]}
// lo and hi are left out where every bucket is one value, odd where nothing is odd.
std::string series_json(const std::vector<Bucket>& buckets, double start);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void Bucket::add(std::int64_t step, double seconds, double value) {
  first = points() == 0 ? step : first;
  last = step;
  time = seconds;
  if (std::isfinite(value)) {
    sum += value;
    low = std::min(low, value);
    high = std::max(high, value);
    ++finite;
  } else {
    ++(std::isnan(value) ? nan : value > 0 ? above : below);
  }
}

TUTTI_INLINE void Bucket::add(const Bucket& next) {
  last = next.last;
  time = next.time;
  sum += next.sum;
  low = std::min(low, next.low);
  high = std::max(high, next.high);
  finite += next.finite;
  nan += next.nan;
  above += next.above;
  below += next.below;
}

TUTTI_INLINE void Series::add(std::int64_t step, double seconds, double value) {
  latest_ = value;
  if (!buckets_.empty() && step < buckets_.back().last) {
    cut(step);
  }
  if (!buckets_.empty() && buckets_.back().last == step && buckets_.back().points() == 1) {
    buckets_.back() = {};
    --points_;
  } else if (buckets_.empty() || buckets_.back().points() >= width_) {
    if (buckets_.size() == most) {
      for (std::size_t i = 0; i < most / 2; ++i) {
        Bucket pair = buckets_[2 * i];
        pair.add(buckets_[2 * i + 1]);
        buckets_[i] = pair;
      }
      buckets_.resize(most / 2);
      width_ *= 2;
    }
    buckets_.emplace_back();
  }
  buckets_.back().add(step, seconds, value);
  ++points_;
}

TUTTI_INLINE void Series::cut(std::int64_t step) {
  while (!buckets_.empty() && buckets_.back().last >= step) {
    points_ -= buckets_.back().points();
    buckets_.pop_back();
  }
}

TUTTI_INLINE std::vector<Bucket> Series::between(std::int64_t from, std::int64_t to,
                                                 std::size_t count) const {
  const auto ends_before = [](const Bucket& bucket, std::int64_t step) {
    return bucket.last < step;
  };
  auto at = std::lower_bound(buckets_.begin(), buckets_.end(), from, ends_before);
  auto end = std::lower_bound(at, buckets_.end(), to, ends_before);
  // One more on either side, for the lines that leave the picture.
  at -= at != buckets_.begin() ? 1 : 0;
  end += end != buckets_.end() ? 1 : 0;
  if (static_cast<std::size_t>(end - at) <= count) {
    return {at, end};
  }
  std::vector<Bucket> out;
  const double start = static_cast<double>(at->first);
  const double wide =
      (static_cast<double>((end - 1)->last) - start + 1) / static_cast<double>(count);
  std::int64_t group = -1;
  for (; at != end; ++at) {
    const auto mine = static_cast<std::int64_t>((static_cast<double>(at->first) - start) / wide);
    if (mine == group) {
      out.back().add(*at);
    } else {
      out.push_back(*at);
    }
    group = mine;
  }
  return out;
}

TUTTI_INLINE void append_short(std::string& text, double value) {
  if (!std::isfinite(value)) {
    text += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return;
  }
  std::array<char, 32> digits{};
  text.append(
      digits.data(),
      std::to_chars(digits.begin(), digits.end(), value, std::chars_format::general, 7).ptr);
}

TUTTI_INLINE std::string series_json(const std::vector<Bucket>& buckets, double start) {
  std::string x;
  std::string t;
  std::string m;
  std::string lo;
  std::string hi;
  std::string odd;
  bool wide = false;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    for (std::string* list : {&x, &t, &m, &lo, &hi}) {
      *list += i > 0 ? "," : "";
    }
    x += std::to_string(bucket.middle());
    append_short(t, std::round((bucket.time - start) * 100) / 100);
    if (bucket.finite > 0) {
      append_short(m, bucket.mean());
      append_short(lo, bucket.low);
      append_short(hi, bucket.high);
    } else {
      for (std::string* list : {&m, &lo, &hi}) {
        *list += "null";
      }
    }
    wide = wide || bucket.finite > 1;
    if (bucket.finite < bucket.points()) {
      odd += (odd.empty() ? "[" : ",[") + std::to_string(i) + "," + std::to_string(bucket.nan) +
             "," + std::to_string(bucket.above) + "," + std::to_string(bucket.below) + "]";
    }
  }
  return "{\"x\":[" + x + "],\"t\":[" + t + "],\"m\":[" + m + "]" +
         (wide ? ",\"lo\":[" + lo + "],\"hi\":[" + hi + "]" : "") +
         (odd.empty() ? "" : ",\"odd\":[" + odd + "]") + "}";
}

}  // namespace tutti::detail

#endif
