// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/config.hpp>

namespace tutti::train {

/// Chooses the number of threads with which a step takes the least time.
///
/// A trial times windows of steps, count after count, several times over; the first step of a
/// window is left out, since it starts threads. A window is long enough for a busy machine to
/// divide its cores anew. The mean decides, without the longest and the shortest step: there
/// threads wait for each other seldom but long, which a median does not see. A trial goes on until
/// the means are sure enough. Another count than the one in use has to be a good deal faster.
/// Between trials it watches: a step that takes longer than it did starts a new trial, and so does
/// time, since a count that is not in use may have become faster. Trials that change nothing become
/// rare, and so do those that have cost much.
///
/// It knows no clock and no thread: took() is told.
class ThreadChoice {
 public:
  static constexpr int window = 4;                ///< steps of a count in a row, at least,
  static constexpr double window_seconds = 0.15;  ///< and how long they take together, at least
  static constexpr int rounds = 3;                ///< windows of each count in a trial, at least,
  static constexpr std::size_t most_steps = 48;   ///< then until so many steps are timed,
  static constexpr double sure = 2;               ///< or so many standard errors tell means apart
  static constexpr std::size_t watched = 32;      ///< steps whose mean says how long one takes,
  static constexpr double watched_seconds = 1;    ///< and how long they take together, at least
  static constexpr double gain = 0.9;             ///< of the time, at most, makes a count better
  static constexpr double slower = 1.3;           ///< times as long starts a trial
  static constexpr double hopeless = 1.5;         ///< times the best ends a count's trial
  static constexpr std::int64_t least_rest = 64;  ///< steps between trials
  static constexpr std::int64_t most_rest = 1024;
  static constexpr std::int64_t patience = 16;  ///< rests after which time alone starts a trial
  static constexpr double most_cost =
      0.05;  ///< of the time since, at most, is what a trial has lost

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

  /// A step with next() threads has taken so long, in any unit. seconds: the same in seconds; as it
  /// comes, four steps are a window. Returns whether chosen() is another one now.
  bool took(double time, double seconds = window_seconds);

  /// Never takes this count again; the first one cannot be dropped.
  void drop(int count);

  /// How long a step took with a count in its last trial; 0: it has had none.
  [[nodiscard]] double mean(int count) const;

 private:
  struct Mean {
    double value = 0;
    double error = 0;  // the standard error
  };
  struct Count {
    int count = 0;
    bool dropped = false;
    Mean mean{};
    std::vector<double> times{};
  };

  static Mean mean_of(const std::vector<double>& times);
  static bool is_surely_less(const Mean& one, const Mean& other, double factor);
  void begin_trial();
  [[nodiscard]] bool is_hopeless() const;
  bool end_round();
  [[nodiscard]] std::size_t fastest() const;  // of open_
  [[nodiscard]] bool is_sure() const;
  bool decide();
  void watch(double time, double seconds);

  std::vector<Count> counts_;
  std::size_t chosen_ = 0;
  std::vector<std::size_t> open_;  // of counts_: in the trial; empty: there is none
  std::size_t place_ = 0;          // in open_
  int step_ = 0;                   // of the window
  double seconds_ = 0;             // of the window, or of the steps watched
  int round_ = 0;
  double trial_ = 0;  // the time of the trial's steps
  int steps_ = 0;     // of the trial
  std::vector<double> recent_;
  double usual_ = 0;        // the mean of the steps watched; 0: not known yet
  std::int64_t since_ = 0;  // steps since the last trial
  double passed_ = 0;       // the time that they took
  std::int64_t rest_ = least_rest;
  double cost_ = 0;  // how much longer the last trial took than as many steps of the best count
};

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train {

// Without the longest and the shortest, where there is more than one window.
TUTTI_INLINE ThreadChoice::Mean ThreadChoice::mean_of(const std::vector<double>& times) {
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  const bool leaves_out = times.size() >= window;
  const double count = static_cast<double>(times.size()) - (leaves_out ? 2 : 0);
  const double base = times.front();  // equal times have exactly this mean
  double sum = 0;
  for (auto each = times.begin(); each != times.end(); ++each) {
    sum += leaves_out && (each == least || each == most) ? 0 : *each - base;
  }
  const double mean = base + sum / count;
  double squares = 0;
  for (auto each = times.begin(); each != times.end(); ++each) {
    const double apart = leaves_out && (each == least || each == most) ? 0 : *each - mean;
    squares += apart * apart;
  }
  return {.value = mean, .error = std::sqrt(squares / (count * (count - 1)))};
}

// Whether one is less than `factor` times the other by more than chance.
TUTTI_INLINE bool ThreadChoice::is_surely_less(const Mean& one, const Mean& other, double factor) {
  return factor * other.value - one.value > sure * std::hypot(one.error, factor * other.error);
}

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

TUTTI_INLINE double ThreadChoice::mean(int count) const {
  const auto found = std::find_if(counts_.begin(), counts_.end(),
                                  [&](const Count& one) { return one.count == count; });
  return found == counts_.end() ? 0 : found->mean.value;
}

TUTTI_INLINE void ThreadChoice::begin_trial() {
  open_.clear();
  if (has_choice()) {
    open_.push_back(chosen_);
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      counts_[i].times.clear();
      if (i != chosen_ && !counts_[i].dropped) {
        open_.push_back(i);
      }
    }
  }
  place_ = 0;
  step_ = 0;
  seconds_ = 0;
  round_ = 0;
  trial_ = 0;
  steps_ = 0;
}

TUTTI_INLINE bool ThreadChoice::took(double time, double seconds) {
  if (!trying()) {
    watch(time, seconds);
    return false;
  }
  Count& count = counts_[open_[place_]];
  trial_ += time;
  ++steps_;
  seconds_ += seconds;
  // Threads are started in the first one.
  if (step_++ > 0) {
    count.times.push_back(time);
  }
  if (step_ < window || (seconds_ < window_seconds && !(step_ == window && is_hopeless()))) {
    return false;
  }
  count.mean = mean_of(count.times);
  step_ = 0;
  seconds_ = 0;
  if (++place_ < open_.size()) {
    return false;
  }
  place_ = 0;
  return end_round();
}

// Whether the window's steps are far behind the count before, so that it ends early.
TUTTI_INLINE bool ThreadChoice::is_hopeless() const {
  const std::vector<double>& times = counts_[open_[place_]].times;
  const Mean now = mean_of({times.end() - (window - 1), times.end()});
  return std::any_of(
      open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(place_),
      [&](std::size_t i) { return is_surely_less(counts_[i].mean, now, 1 / hopeless); });
}

// Leaves out what is far behind, which may be the count in use. Returns whether another is chosen.
TUTTI_INLINE bool ThreadChoice::end_round() {
  ++round_;
  const Mean best = counts_[fastest()].mean;
  std::erase_if(open_,
                [&](std::size_t i) { return is_surely_less(best, counts_[i].mean, 1 / hopeless); });
  if (round_ >= rounds) {
    std::erase_if(open_, [&](std::size_t i) {
      return i != chosen_ && is_surely_less(best, counts_[i].mean, 1);
    });
  }
  const bool is_known =
      round_ >= rounds && (is_sure() || counts_[fastest()].times.size() >= most_steps);
  return open_.size() < 2 || is_known ? decide() : false;
}

TUTTI_INLINE std::size_t ThreadChoice::fastest() const {
  return *std::min_element(open_.begin(), open_.end(), [&](std::size_t a, std::size_t b) {
    return counts_[a].mean.value < counts_[b].mean.value;
  });
}

// Whether more windows would hardly change what is decided.
TUTTI_INLINE bool ThreadChoice::is_sure() const {
  const Mean& now = counts_[chosen_].mean;
  return std::all_of(open_.begin(), open_.end(), [&](std::size_t i) {
    const Mean& mean = counts_[i].mean;
    return i == chosen_ || is_surely_less(mean, now, gain) || is_surely_less(now, mean, 1 / gain);
  });
}

TUTTI_INLINE bool ThreadChoice::decide() {
  const std::size_t best = fastest();
  const bool better = counts_[best].mean.value < gain * counts_[chosen_].mean.value;
  chosen_ = better ? best : chosen_;
  rest_ = better ? least_rest : std::min(2 * rest_, most_rest);
  cost_ = trial_ - steps_ * std::min(counts_[best].mean.value, counts_[chosen_].mean.value);
  open_.clear();
  recent_.clear();
  usual_ = 0;
  since_ = 0;
  passed_ = 0;
  return better;
}

TUTTI_INLINE void ThreadChoice::watch(double time, double seconds) {
  ++since_;
  passed_ += time;
  recent_.push_back(time);
  seconds_ += seconds;
  if (recent_.size() < watched || seconds_ < watched_seconds) {
    return;
  }
  const double now = mean_of(recent_).value;
  recent_.clear();
  seconds_ = 0;
  const bool is_slower = usual_ > 0 && now > slower * usual_;
  if (!is_slower) {
    usual_ = usual_ == 0 ? now : std::min(usual_, now);
  }
  const bool is_due = (is_slower && since_ >= rest_) || since_ >= patience * rest_;
  if (is_due && cost_ <= most_cost * passed_) {
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
