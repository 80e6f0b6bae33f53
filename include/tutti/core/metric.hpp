// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti {

#include <tutti/config.hpp>

/// How the states of a metric that several ranks hold become one.
enum class StateReduction : std::uint8_t {
  sum,          ///< tensors of one shape are added
  concatenate,  ///< rows (dimension 0) are put one after the other, in rank order; their number may
                ///< differ from rank to rank
};

/// Receives what a metric computed; the loop logs and keeps it.
class MetricReport {
 public:
  virtual ~MetricReport() = default;

  /// The value under the metric's own name.
  virtual void value(double value) = 0;

  /// One of several values, under this name in place of the metric's.
  virtual void value(std::string_view name, double value) = 0;

  /// A table under the metric's own name, for loggers that take tables. rows: a text per column.
  virtual void table(std::span<const std::string> columns,
                     std::span<const std::vector<std::string>> rows) = 0;
};

/// A number computed over many batches and all ranks.
///
/// What a metric keeps are tensors, its states. Whoever computes it reduces `states()` over ranks
/// first, by addition or by concatenation, so the value is that of all the data.
/// Source: torchmetrics' contract, with these two reductions.
class Metric {
 public:
  virtual ~Metric() = default;

  /// Takes in one batch. Shapes are the concrete metric's; no gradient is recorded.
  virtual void update(const at::Tensor& outputs, const at::Tensor& targets) = 0;

  /// The value for these states; `states` has the order of states().
  [[nodiscard]] virtual double compute(const std::vector<at::Tensor>& states) const = 0;

  /// What was kept of the batches so far. Tensors that are concatenated over ranks are never
  /// written to again; others may be.
  [[nodiscard]] virtual std::vector<at::Tensor> states() const = 0;

  /// Replaces the states, as after loading a checkpoint.
  virtual void set_states(std::vector<at::Tensor> states) = 0;

  /// How state number `state` of several ranks becomes one.
  [[nodiscard]] virtual StateReduction reduction(std::size_t /*state*/) const {
    return StateReduction::sum;
  }

  /// Hands over all that is known from these states: compute()'s value unless a metric has more.
  virtual void report(const std::vector<at::Tensor>& states, MetricReport& report) const {
    report.value(compute(states));
  }

  /// Forgets all batches.
  virtual void reset() = 0;

  /// A new metric with the same options and no batches.
  [[nodiscard]] virtual std::unique_ptr<Metric> clone() const = 0;

  /// The name under which it is logged: "MulticlassAccuracy".
  [[nodiscard]] virtual std::string name() const = 0;

  /// The value for this process's batches alone.
  [[nodiscard]] double compute() const { return compute(states()); }
};

/// Metrics that a model brings, each once per use (training, every evaluation set).
using Metrics = std::vector<std::shared_ptr<const Metric>>;

}  // namespace tutti

#if defined(TUTTI_SEPARATE_COMPILATION)
TUTTI_TEMPLATE class std::vector<std::shared_ptr<const tutti::Metric>>;
#endif
