#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti {

/// A number computed over many batches and all ranks.
///
/// The counts a metric keeps are tensors that add up over ranks: whoever computes it sums
/// `states()` over ranks first, so the value is that of all the data.
/// Source: torchmetrics' contract, with sum as the only reduction.
class Metric {
 public:
  virtual ~Metric() = default;

  /// Takes in one batch. Shapes are the concrete metric's; no gradient is recorded.
  virtual void update(const at::Tensor& outputs, const at::Tensor& targets) = 0;

  /// The value for these counts; `states` has the order and shapes of states().
  [[nodiscard]] virtual double compute(const std::vector<at::Tensor>& states) const = 0;

  /// The counts so far; sums over ranks are their meaning for the whole world.
  [[nodiscard]] virtual std::vector<at::Tensor> states() const = 0;

  /// Replaces the counts, as after loading a checkpoint.
  virtual void set_states(std::vector<at::Tensor> states) = 0;

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
