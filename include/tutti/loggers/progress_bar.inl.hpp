// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/progress_bar.hpp>

namespace tutti {

TUTTI_INLINE void ProgressBar::apply(BatchEnd, const State& state) {
  if (run.train.open) {
    const Timestamp& now = state.timestamp;
    run.train.shown.done = run.line_per_epoch ? now.batch_in_epoch : now.get(run.unit).count();
    step(run.train, state);
  }
}

TUTTI_INLINE void ProgressBar::apply(EpochEnd, const State& state) {
  if (run.line_per_epoch) {
    run.epoch_over = true;
    settle(state);
  }
}

TUTTI_INLINE void ProgressBar::apply(EvalEnd, const State& state) {
  run.report.evaluated(state);
  end_other(state);
}

TUTTI_INLINE void ProgressBar::close(const State& state) {
  if (run.train.open && run.settled && !run.terminal) {
    draw(run.train, state);
  }
  leave_line();
  run.train.open = run.other.open = run.settled = false;
}

TUTTI_INLINE void ProgressBar::log_metrics(std::span<const LoggedMetric> metrics, std::int64_t) {
  if (!run.speaks) {
    return;
  }
  for (const LoggedMetric& metric : metrics) {
    if (metric.name.starts_with("loss/train/")) {
      run.losses.set(metric.name, metric.value);
    } else if (run.other.open && metric.name.starts_with("metrics/")) {
      run.metrics.set(metric.name, metric.value);
    }
  }
}

TUTTI_INLINE void ProgressBar::log_result(const LoggedResult& result) {
  if (!run.speaks) {
    return;
  }
  if (run.train.open) {
    leave(run.train, result.state);
  }
  run.train.open = run.settled = run.epoch_over = false;
  if (!summary) {
    return;
  }
  std::vector<std::pair<std::string, double>> losses;
  for (const auto& [key, value] : run.losses) {
    losses.emplace_back(key, value);
  }
  detail::print(stream, run.report.end(result, losses, look()));
}

TUTTI_INLINE detail::Look ProgressBar::look() const {
  if (!run.terminal) {
    return {.width = width.value_or(0)};
  }
  return {.width = std::max(width.value_or(detail::terminal_width(stream)) - 1, 1),
          .unicode = detail::draws_unicode(),
          .colours = detail::allows_colours()};
}

TUTTI_INLINE void ProgressBar::say_summary(const State& state) {
  const std::string text = run.speaks && summary ? run.report.summary(state, look()) : "";
  if (!text.empty()) {
    leave_line();
    detail::print(stream, text);
  }
}

TUTTI_INLINE void ProgressBar::next_line(const State& state) {
  if (run.settled) {
    run.settled = false;
    leave(run.train, state);
    run.train.open = !std::exchange(run.epoch_over, false);
  }
  if (!run.train.open && run.speaks) {
    open_train(state);
  }
}

TUTTI_INLINE void ProgressBar::open_train(const State& state) {
  const Time& length = state.max_duration;
  run.line_per_epoch = !length || length.unit() == TimeUnit::epoch;
  run.unit = run.line_per_epoch ? TimeUnit::batch : length.unit();
  const std::int64_t at = state.timestamp.get(run.unit).count();
  if (run.line_per_epoch) {
    std::string label = "epoch " + std::to_string(state.timestamp.epoch + 1);
    label += length ? "/" + std::to_string(length.count()) : std::string();
    open(run.train, std::move(label), state.timestamp.batch_in_epoch, state.dataloader_len,
         run.unit, state);
  } else {
    open(run.train, {}, at, length.count(), run.unit, state);
  }
}

TUTTI_INLINE void ProgressBar::settle(const State& state) {
  if (run.train.open) {
    run.settled = true;
    if (run.terminal) {
      draw(run.train, state);
    }
  }
}

TUTTI_INLINE void ProgressBar::begin_other(const State& state, const std::string& label) {
  say_summary(state);
  run.metrics.clear();
  if (run.speaks) {
    open(run.other, label, 0, state.dataloader_len, TimeUnit::batch, state);
  }
}

TUTTI_INLINE void ProgressBar::end_other(const State& state) {
  Track& track = run.other;
  if (!track.open) {
    return;
  }
  track.open = false;
  if (run.train.open) {  // whose line shows what came of it
    run.train.paused += Clock::now() - track.began;
    settle(state);
  } else {
    track.shown.values = other_values(state.dataloader_label);
    leave(track, state);
  }
}

TUTTI_INLINE void ProgressBar::open(Track& track, std::string label, std::int64_t done,
                                    std::int64_t total, TimeUnit unit, const State& state) {
  track = {.shown = {.label = detail::printable(label),
                     .done = done,
                     .total = total,
                     .began_at = done,
                     .unit = to_string(unit)},
           .began = Clock::now(),
           .open = true};
  // A terminal gets its first drawing at once.
  const std::chrono::duration<double> wait(run.terminal ? redraw_seconds : 0);
  track.drawn = track.began - std::chrono::ceil<Clock::duration>(wait);
  step(track, state);
}

TUTTI_INLINE void ProgressBar::step(Track& track, const State& state) {
  if (!track.open) {
    return;
  }
  const std::chrono::duration<double> since = Clock::now() - track.drawn;
  if (since.count() >= (run.terminal ? redraw_seconds : line_seconds)) {
    draw(track, state);
  }
}

TUTTI_INLINE void ProgressBar::draw(Track& track, const State& state) {
  const Clock::time_point now = Clock::now();
  detail::Progression& shown = track.shown;
  track.drawn = now;
  shown.left = -1;
  shown.seconds = std::chrono::duration<double>(now - track.began - track.paused).count();
  if (&track == &run.train) {
    shown.values = train_values();
    shown.left = run.report.seconds_left(state);
    if (!run.line_per_epoch) {
      shown.label = std::string(detail::unit_word(run.unit)) + " " + std::to_string(shown.done) +
                    "/" + std::to_string(shown.total);
    }
  } else if (shown.done > 0 && shown.done < shown.total) {
    shown.left = shown.seconds / static_cast<double>(shown.done) *
                 static_cast<double>(shown.total - shown.done);
  }
  const std::string line = detail::line_text(shown, look());
  run.on_line = run.terminal;
  detail::print(stream, run.terminal ? "\r" + line + "\033[K" : line + "\n");
}

TUTTI_INLINE void ProgressBar::leave(Track& track, const State& state) {
  draw(track, state);
  leave_line();
}

TUTTI_INLINE void ProgressBar::leave_line() {
  if (std::exchange(run.on_line, false)) {
    detail::print(stream, "\n");
  }
}

TUTTI_INLINE std::vector<detail::Progression::Value> ProgressBar::train_values() const {
  std::vector<detail::Progression::Value> values;
  std::vector<detail::Progression::Value> others;
  for (const auto& [key, value] : run.losses) {
    const std::string part = key.substr(std::string_view("loss/train/").size());
    if (part == "total") {
      values.push_back({"loss=" + detail::number_text(value)});
    } else {
      others.push_back({detail::printable(part) + "=" + detail::number_text(value)});
    }
  }
  // Those of which more is better first: the loss is there already.
  for (const Comparison wanted : {Comparison::greater, Comparison::less}) {
    for (const detail::Report::Entry& entry : run.report.entries()) {
      if (detail::direction(Comparison::by_name, entry.metric) == wanted) {
        const std::string number = "=" + detail::number_text(entry.last);
        values.push_back(
            {detail::printable(entry.name()) + number, detail::printable(entry.metric) + number});
      }
    }
  }
  values.insert(values.end(), others.begin(), others.end());
  return values;
}

TUTTI_INLINE std::vector<detail::Progression::Value> ProgressBar::other_values(
    const std::string& label) const {
  std::vector<detail::Progression::Value> values;
  const std::string prefix = "metrics/" + label + "/";
  for (const auto& [key, value] : run.metrics) {
    if (key.starts_with(prefix)) {
      values.push_back(
          {detail::printable(key.substr(prefix.size())) + "=" + detail::number_text(value)});
    }
  }
  return values;
}

}  // namespace tutti
