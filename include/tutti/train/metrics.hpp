#pragma once

#include <algorithm>
#include <memory>
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

namespace tutti::train {

/// The metrics of one use: training, or one evaluation set. Each is a copy of its own.
class MetricSet {
 public:
  MetricSet() = default;

  /// Copies `metrics`, keeping those whose name contains one of `names` (any case); no names keep
  /// all. prefix: what logged names begin with, "metrics/train/".
  /// Throws c10::Error when a name matches none, or two metrics have one name.
  MetricSet(const Metrics& metrics, const std::vector<std::string>& names, std::string prefix);

  [[nodiscard]] bool empty() const { return entries_.empty(); }

  void reset() {
    for (auto& entry : entries_) {
      entry.metric->reset();
    }
  }

  /// A copy of what the metrics have counted.
  [[nodiscard]] std::vector<std::vector<at::Tensor>> counts() const;
  /// Goes back to what counts() returned.
  void set_counts(const std::vector<std::vector<at::Tensor>>& counts) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].metric->set_states(copied(counts.at(i)));
    }
  }

  /// Lets every metric see a batch.
  void update(const AnyModel& model, const Batch& batch, const Outputs& outputs);

  /// The values over all ranks' batches, kept in `values` and logged at the present step.
  void compute(dist::Communicator& communicator, const State& state, MetricValues& values) const;

  /// Saves the counts over all ranks' batches and the last values; a collective.
  void save(const State& state, const MetricValues& values, Archive& archive) const;

  /// Restores what save() saved; rank 0 takes the counts, since they add up over ranks.
  void load(const State& state, const Archive& archive, MetricValues& values);

 private:
  struct Entry {
    std::string name;
    std::string logged_as;
    std::unique_ptr<Metric> metric;
  };

  void check_is_new(const std::string& name) const;

  static std::vector<at::Tensor> copied(std::vector<at::Tensor> tensors);

  // A metric's counts over all ranks.
  static std::vector<at::Tensor> summed(const Entry& entry, dist::Communicator& communicator,
                                        const State& state);

  static std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  }
  static std::string list(const Metrics& metrics);

  std::vector<Entry> entries_;
};

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train {

TUTTI_INLINE MetricSet::MetricSet(const Metrics& metrics, const std::vector<std::string>& names,
                                  std::string prefix) {
  std::vector<bool> used(names.size(), names.empty());
  for (const auto& metric : metrics) {
    bool wanted = names.empty();
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (lower(metric->name()).find(lower(names[i])) != std::string::npos) {
        wanted = used[i] = true;
      }
    }
    if (wanted) {
      check_is_new(metric->name());
      entries_.push_back({metric->name(), prefix + metric->name(), metric->clone()});
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    TUTTI_CHECK_VALUE(used[i], "no metric of the model has a name that contains \"", names[i],
                      "\"; it has: ", list(metrics));
  }
}

TUTTI_INLINE std::vector<std::vector<at::Tensor>> MetricSet::counts() const {
  std::vector<std::vector<at::Tensor>> out;
  for (const auto& entry : entries_) {
    out.push_back(copied(entry.metric->states()));
  }
  return out;
}

TUTTI_INLINE void MetricSet::update(const AnyModel& model, const Batch& batch,
                                    const Outputs& outputs) {
  const c10::AutoGradMode no_grad(false);
  for (auto& entry : entries_) {
    model.update_metric(batch, outputs, *entry.metric);
  }
}

TUTTI_INLINE void MetricSet::compute(dist::Communicator& communicator, const State& state,
                                     MetricValues& values) const {
  const c10::AutoGradMode no_grad(false);
  for (const auto& entry : entries_) {
    const double value = entry.metric->compute(summed(entry, communicator, state));
    values[entry.name] = value;
    state.log_metrics({{entry.logged_as, value}});
  }
}

TUTTI_INLINE void MetricSet::save(const State& state, const MetricValues& values,
                                  Archive& archive) const {
  const c10::AutoGradMode no_grad(false);
  for (const auto& entry : entries_) {
    archive.put("counts/" + entry.name, summed(entry, *state.communicator, state));
  }
  for (const auto& [name, value] : values) {
    archive.put("values/" + name, value);
  }
}

TUTTI_INLINE void MetricSet::load(const State& state, const Archive& archive,
                                  MetricValues& values) {
  for (const auto& entry : entries_) {
    entry.metric->reset();
    if (state.rank == 0 && archive.contains("counts/" + entry.name)) {
      auto counts = archive.get<std::vector<at::Tensor>>("counts/" + entry.name);
      for (auto& count : counts) {
        count = count.to(state.device);
      }
      entry.metric->set_states(std::move(counts));
    }
    if (const std::string value = "values/" + entry.name; archive.contains(value)) {
      values[entry.name] = archive.get<double>(value);  // else it had not been computed yet
    }
  }
}

TUTTI_INLINE void MetricSet::check_is_new(const std::string& name) const {
  for (const Entry& entry : entries_) {
    TUTTI_CHECK_VALUE(entry.name != name, "two metrics of the model are called \"", name,
                      "\", so that one would hide the other; give each a name of its own, as "
                      "MulticlassAccuracy{{.top_k = 5, .name = \"Top5\"}}");
  }
}

TUTTI_INLINE std::vector<at::Tensor> MetricSet::copied(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) {
    tensor = tensor.clone();
  }
  return tensors;
}

TUTTI_INLINE std::vector<at::Tensor> MetricSet::summed(const Entry& entry,
                                                       dist::Communicator& communicator,
                                                       const State& state) {
  std::vector<at::Tensor> counts = entry.metric->states();
  if (communicator.size() > 1) {
    for (auto& count : counts) {
      count = count.device() == state.device ? count.clone() : count.to(state.device);
      communicator.all_reduce(count, dist::ReduceOp::sum);
    }
  }
  return counts;
}

TUTTI_INLINE std::string MetricSet::list(const Metrics& metrics) {
  std::string text;
  for (const auto& metric : metrics) {
    text += (text.empty() ? "" : ", ") + metric->name();
  }
  return text.empty() ? "(none)" : text;
}

}  // namespace tutti::train

#endif
