// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/pattern.hpp>
#include <tutti/train/metrics.hpp>

namespace tutti::train {

TUTTI_INLINE MetricSet::MetricSet(const Metrics& metrics, const std::vector<std::string>& names,
                                  std::string prefix)
    : prefix_(std::move(prefix)) {
  std::vector<bool> used(names.size(), names.empty());
  std::vector<tutti::detail::Pattern> patterns;
  for (const std::string& name : names) {
    static_cast<void>(tutti::detail::Pattern(name));  // refused in the words that were given
    patterns.emplace_back(".*(?:" + lower(name) + ").*");
  }
  for (const auto& metric : metrics) {
    TUTTI_CHECK_VALUE(metric != nullptr, "the model's metrics() gives ", metrics.size(),
                      " metrics, one of which is null; leave it out");
    bool wanted = names.empty();
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (patterns[i].matches(lower(metric->name()))) {
        wanted = used[i] = true;
      }
    }
    if (wanted) {
      check_is_new(metric->name());
      auto own = metric->clone();
      TUTTI_CHECK_VALUE(own != nullptr, "clone() of the metric ", metric->name(),
                        " gives null; let it give a new metric of the same settings");
      entries_.push_back({metric->name(), prefix_ + metric->name(), std::move(own)});
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    TUTTI_CHECK_VALUE(used[i], "no metric of the model has a name that matches \"", names[i],
                      "\"; it has: ", list(metrics));
  }
}

TUTTI_INLINE std::vector<std::string> MetricSet::names() const {
  std::vector<std::string> out;
  for (const auto& entry : entries_) {
    out.push_back(entry.name);
  }
  return out;
}

TUTTI_INLINE std::vector<std::vector<at::Tensor>> MetricSet::counts() const {
  std::vector<std::vector<at::Tensor>> out;
  for (const auto& entry : entries_) {
    out.push_back(kept(entry, entry.metric->states()));
  }
  return out;
}

TUTTI_INLINE void MetricSet::update(const AnyModel& model, const Batch& batch,
                                    const Outputs& outputs) {
  const c10::AutoGradMode no_grad(false);
  updated_ = true;
  for (auto& entry : entries_) {
    try {
      model.update_metric(batch, outputs, *entry.metric);
    } catch (c10::Error& error) {
      error.add_context("This is the metric " + entry.logged_as +
                        (batch.has_targets() || model.has_update_metric()
                             ? "."
                             : "; a model whose batches have no targets says what a metric sees in "
                               "update_metric(batch, outputs, metric)."));
      throw;
    }
  }
}

TUTTI_INLINE void MetricSet::compute(dist::Communicator& communicator, const State& state,
                                     MetricValues& values) const {
  const c10::AutoGradMode no_grad(false);
  if (entries_.empty()) {
    return;
  }
  const auto anywhere = [&](bool here) {
    const dist::CallPurpose metrics("metrics");
    return communicator.all_reduce_value(here ? 1 : 0, dist::ReduceOp::maximum) > 0;
  };
  if (!anywhere(updated_)) {
    if (has_values_) {
      for (const auto& [name, value] : values) {
        state.log_metrics({{prefix_ + name, value}});
      }
      return;
    }
    TORCH_WARN(prefix_, entries_.front().name,
               " and what stands beside it is computed, and no batch has come to it: the value "
               "says nothing; give the loader data");
  }
  for (const auto& entry : entries_) {
    detail::Reporter reporter(state, prefix_, entry.name, entry.logged_as, entry.named, values);
    entry.metric->report(over_ranks(entry, communicator, state), reporter);
  }
}

TUTTI_INLINE void MetricSet::save(const State& state, const MetricValues& values,
                                  Archive& archive) const {
  const c10::AutoGradMode no_grad(false);
  for (const auto& entry : entries_) {
    archive.put("counts/" + entry.name, over_ranks(entry, *dist::data_group(state), state));
    if (!entry.named.empty()) {
      archive.put("named/" + entry.name, entry.named);
    }
  }
  for (const auto& [name, value] : values) {
    archive.put("values/" + name, value);
  }
}

TUTTI_INLINE void MetricSet::load(const State& state, const Archive& archive,
                                  MetricValues& values) {
  updated_ = true;
  for (auto& entry : entries_) {
    entry.metric->reset();
    if (dist::data_rank(state) == 0 && archive.contains("counts/" + entry.name)) {
      auto counts = archive.get<std::vector<at::Tensor>>("counts/" + entry.name);
      for (auto& count : counts) {
        count = count.to(state.device);
      }
      entry.metric->set_states(std::move(counts));
    }
    entry.named = archive.contains("named/" + entry.name)
                      ? archive.get<std::vector<std::string>>("named/" + entry.name)
                      : std::vector<std::string>{};
    std::vector<std::string> names = entry.named;
    names.push_back(entry.name);
    for (const std::string& name : names) {
      if (archive.contains("values/" + name)) {
        values[name] = archive.get<double>("values/" + name);  // else not computed yet
      }
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

TUTTI_INLINE std::vector<at::Tensor> MetricSet::kept(const Entry& entry,
                                                     std::vector<at::Tensor> states) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (entry.metric->reduction(i) == StateReduction::sum) {
      states[i] = states[i].clone();
    }
  }
  return states;
}

TUTTI_INLINE std::vector<at::Tensor> MetricSet::over_ranks(const Entry& entry,
                                                           dist::Communicator& communicator,
                                                           const State& state) {
  std::vector<at::Tensor> states = entry.metric->states();
  if (communicator.size() == 1) {
    return states;
  }
  const dist::CallPurpose metrics("metrics");
  for (std::size_t i = 0; i < states.size(); ++i) {
    at::Tensor& own = states[i];
    if (entry.metric->reduction(i) == StateReduction::concatenate) {
      own = dist::gather_rows(communicator, own.to(state.device));
      continue;
    }
    own = own.device() == state.device ? own.clone() : own.to(state.device);
    communicator.all_reduce(own, dist::ReduceOp::sum);
  }
  return states;
}

TUTTI_INLINE std::string MetricSet::list(const Metrics& metrics) {
  std::string text;
  for (const auto& metric : metrics) {
    text += (text.empty() ? "" : ", ") + metric->name();
  }
  return text.empty() ? "(none)" : text;
}

}  // namespace tutti::train
