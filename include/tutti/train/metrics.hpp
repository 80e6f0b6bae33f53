// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/flight_recorder.hpp>
#include <tutti/dist/gather_rows.hpp>
#include <tutti/dist/spread_model.hpp>

namespace tutti::train {

namespace detail {

/// Logs and keeps what one metric reports.
class Reporter final : public MetricReport {
 public:
  /// name, logged_as: of a value without a name of its own. named: gets the names of the others.
  Reporter(const State& state, const std::string& prefix, const std::string& name,
           const std::string& logged_as, std::vector<std::string>& named, MetricValues& values)
      : state_(state),
        prefix_(prefix),
        name_(name),
        logged_as_(logged_as),
        named_(named),
        values_(values) {}

  void value(double value) override { put(name_, logged_as_, value); }
  void value(std::string_view name, double value) override {
    const bool same_as_before = next_ < named_.size() && named_[next_] == name;
    if (!same_as_before && std::find(named_.begin(), named_.end(), name) == named_.end()) {
      named_.emplace_back(name);
    }
    ++next_;
    put(name, prefix_ + std::string(name), value);
  }
  void table(std::span<const std::string> columns,
             std::span<const std::vector<std::string>> rows) override {
    state_.logger.log_table({logged_as_, columns, rows}, state_.timestamp.batch);
  }

 private:
  void put(std::string_view name, std::string_view key, double value) {
    if (const auto found = values_.find(name); found != values_.end()) {
      found->second = value;
    } else {
      values_.emplace(name, value);
    }
    state_.log_metrics({{key, value}});
  }

  const State& state_;
  const std::string& prefix_;
  const std::string& name_;
  const std::string& logged_as_;
  std::vector<std::string>& named_;
  MetricValues& values_;
  std::size_t next_ = 0;
};

}  // namespace detail

/// The metrics of one use: training, or one evaluation set. Each is a copy of its own.
class MetricSet {
 public:
  MetricSet() = default;

  /// Copies `metrics`, keeping those whose name contains one of `names` (any case); no names keep
  /// all. prefix: what logged names begin with, "metrics/train/".
  /// Throws c10::Error when a name matches none, or two metrics have one name.
  MetricSet(const Metrics& metrics, const std::vector<std::string>& names, std::string prefix);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::vector<std::string> names() const;

  void reset() {
    for (auto& entry : entries_) {
      entry.metric->reset();
    }
    updated_ = has_values_ = false;
  }

  /// The values of a checkpoint, which has no counts, stand until a batch comes.
  void take_values() { has_values_ = true; }

  /// What the metrics have counted, which later batches leave alone.
  [[nodiscard]] std::vector<std::vector<at::Tensor>> counts() const;
  /// Goes back to what counts() returned.
  void set_counts(const std::vector<std::vector<at::Tensor>>& counts) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].metric->set_states(kept(entries_[i], counts.at(i)));
    }
    updated_ = true;
  }

  /// Lets every metric see a batch.
  void update(const AnyModel& model, const Batch& batch, const Outputs& outputs);

  /// The values over all ranks' batches, kept in `values` and logged at the present step, as are
  /// the tables. Where no batch has come to this rank since reset(): logs a checkpoint's values
  /// again, or warns.
  void compute(dist::Communicator& communicator, const State& state, MetricValues& values) const;

  /// Saves the counts over all ranks' batches and the last values; a collective.
  void save(const State& state, const MetricValues& values, Archive& archive) const;

  /// Restores what save() saved; rank 0 takes the counts, which are those of all ranks.
  void load(const State& state, const Archive& archive, MetricValues& values);

 private:
  struct Entry {
    std::string name;
    std::string logged_as;
    std::unique_ptr<Metric> metric;
    mutable std::vector<std::string> named{};  // values that it reported under names of their own
  };

  void check_is_new(const std::string& name) const;

  // States that a metric may write to are copied.
  static std::vector<at::Tensor> kept(const Entry& entry, std::vector<at::Tensor> states);

  // A metric's states over all ranks.
  static std::vector<at::Tensor> over_ranks(const Entry& entry, dist::Communicator& communicator,
                                            const State& state);

  // Small letters for capitals, but for those that a regular expression has behind a backslash.
  static std::string lower(std::string text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (i == 0 || text[i - 1] != '\\') {
        text[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
      }
    }
    return text;
  }
  static std::string list(const Metrics& metrics);

  std::vector<Entry> entries_;
  bool updated_ = false;     // since reset()
  bool has_values_ = false;  // a checkpoint's
  std::string prefix_;
};

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/metrics.inl.hpp>
#endif
