// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/utf8.hpp>
#include <tutti/core/logger.hpp>
#include <tutti/core/state.hpp>

namespace tutti::detail {

// The metrics of the newest step, for a checkpoint that is written in it. After a resume readers of
// JSON lines and TensorBoard drop what they have from the checkpoint's step on, and the run
// computes again only what came behind the checkpoint: the rest has to be written once more.
class StepMetrics {
 public:
  void add(std::span<const LoggedMetric> metrics, std::int64_t step);

  void save(Archive& archive) const;
  void load(const Archive& archive);

  // Gives what a checkpoint of this step held to `logger`, which adds it here once more; at rank 0,
  // whose values they are.
  template <class Logger>
  void give_again(const State& state, Logger& logger) {
    const StepMetrics held = std::exchange(*this, {});
    if (held.step_ == state.timestamp.batch && state.rank == 0) {
      std::vector<LoggedMetric> metrics;
      for (std::size_t i = 0; i < held.count_; ++i) {
        metrics.emplace_back(held.names_[i], held.values_[i]);
      }
      logger.log_metrics(metrics, held.step_);
    }
  }

 private:
  std::vector<std::string> names_;  // may be longer: their memory serves the next step
  std::vector<double> values_;
  std::size_t count_ = 0;
  std::int64_t step_ = -1;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void StepMetrics::add(std::span<const LoggedMetric> metrics, std::int64_t step) {
  if (step != step_) {
    step_ = step;
    count_ = 0;
  }
  if (names_.size() < count_ + metrics.size()) {
    names_.resize(count_ + metrics.size());
    values_.resize(names_.size());
  }
  for (const LoggedMetric& metric : metrics) {
    names_[count_] = metric.name;
    values_[count_] = metric.value;
    ++count_;
  }
}

TUTTI_INLINE void StepMetrics::save(Archive& archive) const {
  if (count_ > 0) {
    const auto count = static_cast<std::ptrdiff_t>(count_);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count_; ++i) {
      names.push_back(utf8(names_[i]));  // a checkpoint has no other text
    }
    archive.put("step", step_);
    archive.put("names", names);
    archive.put("values", std::vector<double>(values_.begin(), values_.begin() + count));
  }
}

TUTTI_INLINE void StepMetrics::load(const Archive& archive) {
  *this = {};
  if (archive.contains("step")) {
    names_ = archive.get<std::vector<std::string>>("names");
    values_ = archive.get<std::vector<double>>("values");
    TUTTI_CHECK(names_.size() == values_.size(), "checkpoint: a logger has kept ", names_.size(),
                " names and ", values_.size(), " values, expected as many of both");
    count_ = names_.size();
    step_ = archive.get<std::int64_t>("step");
  }
}

}  // namespace tutti::detail

#endif
