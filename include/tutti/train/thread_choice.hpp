// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/config.hpp>

namespace tutti::train {

/// Chooses the number of threads with which a step takes the least time.
///
/// A trial times short windows of steps, count after count, several times over; the first step of a
/// window is left out, since it starts threads. The median decides, and another count than the one
/// in use has to be a good deal faster. Between trials it watches: a step that takes longer than it
/// did starts a new trial, and so does time, since a count that is not in use may have become
/// faster. Trials that change nothing become rare.
///
/// It knows no clock and no thread: took() is told.
class ThreadChoice {
 public:
  static constexpr int window = 4;                ///< steps of a count in a row
  static constexpr int rounds = 3;                ///< windows of each count in a trial
  static constexpr std::size_t watched = 32;      ///< steps whose median says how long one takes
  static constexpr double gain = 0.9;             ///< of the time, at most, makes a count better
  static constexpr double slower = 1.3;           ///< times as long starts a trial
  static constexpr double hopeless = 1.5;         ///< times the best ends a count's trial
  static constexpr std::int64_t least_rest = 64;  ///< steps between trials
  static constexpr std::int64_t most_rest = 1024;
  static constexpr std::int64_t patience = 16;  ///< rests after which time alone starts a trial

  /// counts: to choose from, the one in use first; not empty, all different.
  explicit ThreadChoice(std::vector<int> counts);

  /// How many threads the next step has.
  [[nodiscard]] int next() const { return counts_[trying() ? open_[place_] : chosen_].count; }
  /// How many it has outside of trials.
  [[nodiscard]] int chosen() const { return counts_[chosen_].count; }
  [[nodiscard]] bool trying() const { return !open_.empty(); }
  /// There is more than one count left.
  [[nodiscard]] bool has_choice() const;
  /// Those that the trial still times; the chosen one when there is no trial.
  [[nodiscard]] std::vector<int> in_question() const;

  /// A step with next() threads has taken so long, in any unit. Returns whether chosen() is another
  /// one now.
  bool took(double time);

  /// Never takes this count again; the first one cannot be dropped.
  void drop(int count);

  /// The median of a count in its last trial; 0: it has had none.
  [[nodiscard]] double median(int count) const;

 private:
  struct Count {
    int count = 0;
    bool dropped = false;
    double median = 0;
    std::vector<double> times{};
  };

  void begin_trial();
  bool end_round();
  bool decide();
  void watch(double time);

  std::vector<Count> counts_;
  std::size_t chosen_ = 0;
  std::vector<std::size_t> open_;  // of counts_: in the trial; empty: there is none
  std::size_t place_ = 0;          // in open_
  int step_ = 0;                   // of the window
  int round_ = 0;
  std::vector<double> recent_;
  double usual_ = 0;  // the median of the steps watched; 0: not known yet
  std::int64_t since_ = 0;
  std::int64_t rest_ = least_rest;
};

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train {

namespace detail {

TUTTI_INLINE double median_of(std::vector<double>& times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace detail

TUTTI_INLINE ThreadChoice::ThreadChoice(std::vector<int> counts) {
  for (const int count : counts) {
    counts_.push_back({.count = count});
  }
  begin_trial();
}

TUTTI_INLINE bool ThreadChoice::has_choice() const {
  return std::count_if(counts_.begin(), counts_.end(),
                       [](const Count& one) { return !one.dropped; }) > 1;
}

TUTTI_INLINE std::vector<int> ThreadChoice::in_question() const {
  std::vector<int> out;
  for (const std::size_t i : open_) {
    out.push_back(counts_[i].count);
  }
  return out.empty() ? std::vector<int>{chosen()} : out;
}

TUTTI_INLINE double ThreadChoice::median(int count) const {
  const auto found = std::find_if(counts_.begin(), counts_.end(),
                                  [&](const Count& one) { return one.count == count; });
  return found == counts_.end() ? 0 : found->median;
}

TUTTI_INLINE void ThreadChoice::begin_trial() {
  open_.clear();
  if (has_choice()) {
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      counts_[i].times.clear();
      if (!counts_[i].dropped) {
        open_.push_back(i);
      }
    }
  }
  place_ = 0;
  step_ = 0;
  round_ = 0;
}

TUTTI_INLINE bool ThreadChoice::took(double time) {
  if (!trying()) {
    watch(time);
    return false;
  }
  // Threads are started in the first one.
  if (step_++ > 0) {
    counts_[open_[place_]].times.push_back(time);
  }
  if (step_ < window) {
    return false;
  }
  step_ = 0;
  if (++place_ < open_.size()) {
    return false;
  }
  place_ = 0;
  return end_round();
}

// Leaves out what is far behind, which may be the count in use. Returns whether another is chosen.
TUTTI_INLINE bool ThreadChoice::end_round() {
  double best = 0;
  for (const std::size_t i : open_) {
    counts_[i].median = detail::median_of(counts_[i].times);
    best = best == 0 ? counts_[i].median : std::min(best, counts_[i].median);
  }
  std::erase_if(open_, [&](std::size_t i) { return counts_[i].median > hopeless * best; });
  return ++round_ == rounds || open_.size() < 2 ? decide() : false;
}

TUTTI_INLINE bool ThreadChoice::decide() {
  std::size_t best = chosen_;
  for (const std::size_t i : open_) {
    if (counts_[i].median < counts_[best].median) {
      best = i;
    }
  }
  const bool better = counts_[best].median < gain * counts_[chosen_].median;
  chosen_ = better ? best : chosen_;
  rest_ = better ? least_rest : std::min(2 * rest_, most_rest);
  open_.clear();
  recent_.clear();
  usual_ = 0;
  since_ = 0;
  return better;
}

TUTTI_INLINE void ThreadChoice::watch(double time) {
  ++since_;
  recent_.push_back(time);
  if (recent_.size() < watched) {
    return;
  }
  const double now = detail::median_of(recent_);
  recent_.clear();
  const bool is_slower = usual_ > 0 && now > slower * usual_;
  if (!is_slower) {
    usual_ = usual_ == 0 ? now : std::min(usual_, now);
  }
  if ((is_slower && since_ >= rest_) || since_ >= patience * rest_) {
    begin_trial();
  }
}

TUTTI_INLINE void ThreadChoice::drop(int count) {
  for (std::size_t i = 1; i < counts_.size(); ++i) {
    if (counts_[i].count == count && !counts_[i].dropped) {
      counts_[i].dropped = true;
      chosen_ = chosen_ == i ? 0 : chosen_;
      if (trying()) {
        begin_trial();  // of the others, from its beginning
      }
    }
  }
}

}  // namespace tutti::train

#endif
