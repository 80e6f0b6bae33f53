// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/thread_choice.hpp>

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
