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
#include <tutti/train/thread_choice.inl.hpp>
#endif
