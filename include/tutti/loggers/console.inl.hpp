// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/loggers/console.hpp>

namespace tutti {

TUTTI_INLINE void ConsoleLogger::validate() const {
  const TimeUnit unit = log_interval.unit();
  if ((unit != TimeUnit::epoch && unit != TimeUnit::batch) || log_interval.count() < 1) {
    throw std::invalid_argument("ConsoleLogger: log_interval is " + to_string(log_interval) +
                                ", expected at least 1ba or 1ep");
  }
}

TUTTI_INLINE void ConsoleLogger::apply(FitEnd, const State& state) {
  if (state.timestamp.batch != run.last_batch) {
    print_train(state);
  }
  run.metrics.clear();
}

TUTTI_INLINE void ConsoleLogger::log_result(const LoggedResult& result) {
  if (run.speaks && summary) {
    const std::vector<std::pair<std::string, double>> losses(run.losses.begin(), run.losses.end());
    detail::print(stream, run.report.end(result, losses, look()));
  }
}

TUTTI_INLINE void ConsoleLogger::apply(EvalBatchEnd, const State& state) {
  const std::int64_t batch = state.eval_timestamp.batch;
  if (run.speaks && batch != run.eval_total && is_sign_of_life(batch)) {
    detail::print(stream, eval_head(state) + "\n");
  }
}

TUTTI_INLINE void ConsoleLogger::apply(EvalEnd, const State& state) {
  std::string text = eval_head(state) + ":";
  run.report.evaluated(state);
  const std::string prefix = "metrics/" + state.dataloader_label + "/";
  for (const auto& [key, value] : run.metrics) {
    if (key.starts_with(prefix)) {
      text += "\n\t Eval " + key + ": " + detail::number_text(value);
    }
  }
  run.metrics.forget(prefix);
  if (run.speaks) {
    detail::print(stream, text + "\n");
  }
}

TUTTI_INLINE bool ConsoleLogger::is_sign_of_life(std::int64_t batch) const {
  const std::int64_t total = run.eval_total;
  if (total < 0) {
    return batch % 100 == 1;  // the length is not known
  }
  return total <= 10 || batch == 1 || (batch - 1) * 10 / total != (batch - 2) * 10 / total;
}

TUTTI_INLINE void ConsoleLogger::print_train(const State& state) {
  run.last_batch = state.timestamp.batch;
  if (!run.speaks) {
    return;
  }
  std::string text = train_head(state) + ":";
  for (const auto& [key, value] : run.metrics) {
    text += "\n\t Train " + key + ": " + detail::number_text(value);
    if (key.starts_with("loss/train/")) {
      run.losses.set(key, value);
    }
  }
  detail::print(stream, text + "\n");
  run.metrics.clear();
}

TUTTI_INLINE std::string ConsoleLogger::train_head(const State& state) {
  const TimeUnit unit = state.max_duration.unit();
  if (unit != TimeUnit::epoch) {
    return "[" + std::string(detail::unit_word(unit)) + "=" +
           std::to_string(state.timestamp.get(unit).count()) + "/" +
           std::to_string(state.max_duration.count()) + "]";
  }
  std::int64_t epoch = state.timestamp.epoch;
  std::int64_t batch = state.timestamp.batch_in_epoch;
  if (batch == 0 && epoch > 0) {  // just over: show its end
    --epoch;
    batch =
        state.dataloader_len >= 0 ? state.dataloader_len : state.previous_timestamp.batch_in_epoch;
  }
  std::string text = "[epoch=" + std::to_string(epoch + 1) + "][batch=" + std::to_string(batch);
  return text + (state.dataloader_len >= 0 ? "/" + std::to_string(state.dataloader_len) : "") + "]";
}

TUTTI_INLINE detail::Look ConsoleLogger::look() const {
  if (!detail::is_terminal(stream)) {
    return {};
  }
  return {.width = detail::terminal_width(stream), .colours = detail::allows_colours()};
}

TUTTI_INLINE void ConsoleLogger::print_summary(const State& state) {
  if (run.speaks && summary) {
    detail::print(stream, run.report.summary(state, look()));
  }
}

}  // namespace tutti
