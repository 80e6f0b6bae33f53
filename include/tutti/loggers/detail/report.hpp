// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/comparison.hpp>
#include <tutti/core/detail/part_done.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/state.hpp>
#include <tutti/loggers/detail/columns.hpp>
#include <tutti/loggers/detail/terminal.hpp>
#include <tutti/loggers/detail/text.hpp>
#include <tutti/loggers/summary.hpp>

namespace tutti::detail {

// What a logger that prints keeps of a run, to begin with its summary and to end with its result.
class Report {
 public:
  using Clock = std::chrono::steady_clock;

  // A metric of an evaluation set during fit.
  struct Entry {
    std::string set{};
    std::string metric{};
    double best = 0;
    std::string best_at{};  // "27ep"
    double last = 0;

    [[nodiscard]] std::string name() const { return set + "/" + metric; }
  };

  void remember(std::span<const Hyperparameter> values) { detail::remember(constants_, values); }

  // The run's summary, once; later nothing.
  std::string summary(const State& state, const Look& look);

  // A fit begins.
  void begin(const State& state);
  [[nodiscard]] bool fits() const { return fits_; }

  // Takes in the values of the set that state.dataloader_label names.
  void evaluated(const State& state);

  // In the order in which they first came.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  // Seconds until the run ends, by what the fit has taken so far; negative: unknown or none.
  [[nodiscard]] double seconds_left(const State& state) const;

  // The fit has ended: a table of best and last metrics, then speed, time, where the weights are
  // and how to go on. losses: of training, by the names that are shown.
  std::string end(const LoggedResult& result,
                  const std::vector<std::pair<std::string, double>>& losses, const Look& look);

 private:
  [[nodiscard]] std::string table(const std::vector<std::pair<std::string, double>>& losses,
                                  const Look& look) const;
  [[nodiscard]] std::string speed_text(const State& state) const;

  Config constants_;
  std::vector<Entry> entries_;
  Timestamp began_;
  double part_began_ = 0;  // of the run that was done then
  Clock::time_point clock_{};
  bool fits_ = false;
  bool summarized_ = false;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string Report::summary(const State& state, const Look& look) {
  const bool said = std::exchange(summarized_, true);
  return said || constants_.empty() ? std::string() : summary_text(state, constants_, look);
}

TUTTI_INLINE void Report::begin(const State& state) {
  entries_.clear();
  began_ = state.timestamp;
  part_began_ = part_done(state);
  clock_ = Clock::now();
  fits_ = true;
}

TUTTI_INLINE void Report::evaluated(const State& state) {
  const auto values = state.eval_metric_values.find(state.dataloader_label);
  if (!fits_ || values == state.eval_metric_values.end()) {
    return;
  }
  const Timestamp& now = state.timestamp;
  const Time at =
      now.get(now.epoch > 0 && now.batch_in_epoch == 0 ? TimeUnit::epoch : TimeUnit::batch);
  for (const auto& evaluated : values->second) {
    const std::string& metric = evaluated.first;
    const double value = evaluated.second;
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.set == values->first && entry.metric == metric;
    });
    if (known == entries_.end()) {
      entries_.push_back({values->first, metric, value, to_string(at), value});
      continue;
    }
    known->last = value;
    if (is_new_best(Comparison::by_name, metric, value, known->best)) {
      known->best = value;
      known->best_at = to_string(at);
    }
  }
}

TUTTI_INLINE double Report::seconds_left(const State& state) const {
  const double done = part_done(state);
  if (!fits_ || done <= part_began_ || done >= 1) {
    return -1;
  }
  const std::chrono::duration<double> passed = Clock::now() - clock_;
  return passed.count() / (done - part_began_) * (1 - done);
}

TUTTI_INLINE std::string Report::table(const std::vector<std::pair<std::string, double>>& losses,
                                       const Look& look) const {
  struct Row {
    std::string name, best, at, last;
  };
  std::vector<Row> rows;
  for (const Entry& entry : entries_) {
    rows.push_back(
        {printable(entry.name()), number_text(entry.best), entry.best_at, number_text(entry.last)});
  }
  for (const auto& [name, value] : losses) {
    rows.push_back({printable(name), "", "", number_text(value)});
  }
  if (rows.empty()) {
    return {};
  }
  const Row head{"metric", "best", "at", "last"};
  int widths[] = {6, 4, 2, 4};
  for (const Row& row : rows) {
    const std::string* cells[] = {&row.name, &row.best, &row.at, &row.last};
    for (std::size_t i = 0; i < 4; ++i) {
      widths[i] = std::max(widths[i], columns(*cells[i]));
    }
  }
  const auto blanks = [](int count) {
    return std::string(static_cast<std::size_t>(std::max(count, 0)), ' ');
  };
  if (look.width > 0) {  // names give way
    widths[0] =
        std::max(std::min(widths[0], look.width - widths[1] - widths[2] - widths[3] - 6), 6);
  }
  const auto line = [&](const Row& row, std::string_view style, std::string_view best) {
    const std::string name(cut(row.name, widths[0]));
    return look.in(style, name) + blanks(widths[0] - columns(name) + 2) +
           blanks(widths[1] - columns(row.best)) + look.in(best, row.best) + "  " +
           look.in(style, row.at) + blanks(widths[2] - columns(row.at) + 2) +
           blanks(widths[3] - columns(row.last)) + look.in(style, row.last) + "\n";
  };
  std::string text = line(head, "1", "1");
  for (const Row& row : rows) {
    text += line(row, "", "32");
  }
  return text;
}

TUTTI_INLINE std::string Report::speed_text(const State& state) const {
  const Timestamp& now = state.timestamp;
  const double trained = std::chrono::duration<double>(now.total_wct - began_.total_wct).count();
  const auto per_second = [&](std::int64_t count) {
    char text[32];
    const double rate = static_cast<double>(count) / trained;
    std::snprintf(text, sizeof text, rate < 10 ? "%.2f" : rate < 1000 ? "%.1f" : "%.0f", rate);
    return std::string(text);
  };
  if (!(trained > 0)) {
    return {};
  }
  std::string text = per_second(now.batch - began_.batch) + " batches a second, " +
                     per_second(now.sample - began_.sample) + " samples";
  return text +
         (now.token > began_.token ? ", " + per_second(now.token - began_.token) + " tokens" : "");
}

TUTTI_INLINE std::string Report::end(const LoggedResult& result,
                                     const std::vector<std::pair<std::string, double>>& losses,
                                     const Look& look) {
  const State& state = result.state;
  const Timestamp& now = state.timestamp;
  fits_ = false;
  const double all = std::chrono::duration<double>(Clock::now() - clock_).count();
  const double trained = std::chrono::duration<double>(now.total_wct - began_.total_wct).count();
  std::string text = table(losses, look);
  if (const std::string speed = speed_text(state); !speed.empty()) {
    text += fact_text("speed", speed, look);
  }
  text += fact_text("time", clock_text(all) + ", " + clock_text(trained) + " of it training", look);
  Look whole = look;  // what is to be copied stays in one piece
  whole.width = 0;
  const auto weights = [&](std::string_view key, std::string_view checkpoint) {
    if (!checkpoint.empty()) {
      text += fact_text(key, std::string(checkpoint) + "/model.safetensors", whole);
    }
  };
  weights("best", result.best_checkpoint);
  weights("latest", result.latest_checkpoint);
  if (!result.resume.empty()) {
    text += fact_text(result.complete ? "train on" : "resume", result.resume, whole);
  }
  return text;
}

}  // namespace tutti::detail

#endif
