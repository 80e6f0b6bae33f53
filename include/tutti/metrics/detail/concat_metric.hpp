// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/metric.hpp>

namespace tutti::detail {

/// A metric that keeps rows of what it has seen: its states are concatenated over batches and over
/// ranks.
///
/// Rows stay on the device of the batch, and nothing waits for the device until compute().
class ConcatMetric : public Metric {
 public:
  [[nodiscard]] StateReduction reduction(std::size_t /*state*/) const final {
    return StateReduction::concatenate;
  }
  [[nodiscard]] std::vector<at::Tensor> states() const final {
    if (rows_.empty()) {
      return no_rows();
    }
    join();
    return rows_.front();
  }
  void set_states(std::vector<at::Tensor> states) final {
    const std::size_t expected = no_rows().size();
    TUTTI_CHECK(states.size() == expected, name(), ": ", states.size(), " states were given, ",
                "expected ", expected);
    rows_.assign(1, std::move(states));
  }
  void reset() final { rows_.clear(); }
  void update(const at::Tensor& outputs, const at::Tensor& targets) final {
    const c10::AutoGradMode no_grad(false);
    take_in(outputs, targets);
  }

  using Metric::compute;

 protected:
  /// Calls add() with the rows of a batch, or not at all when it has none.
  virtual void take_in(const at::Tensor& outputs, const at::Tensor& targets) = 0;

  /// The states of no batch, on the CPU.
  [[nodiscard]] virtual std::vector<at::Tensor> no_rows() const = 0;

  /// rows: for each state, [n, ...]; they share no memory with the batch, which may be used again.
  void add(std::vector<at::Tensor> rows) { rows_.push_back(std::move(rows)); }

 private:
  void join() const {
    if (rows_.size() == 1) {
      return;
    }
    std::vector<at::Tensor> joined;
    for (std::size_t state = 0; state < rows_.front().size(); ++state) {
      std::vector<at::Tensor> parts;
      for (const auto& rows : rows_) {
        parts.push_back(rows[state]);
      }
      joined.push_back(at::cat(parts));
    }
    rows_.assign(1, std::move(joined));
  }

  mutable std::vector<std::vector<at::Tensor>> rows_;  // by batch, or joined, and by state
};

}  // namespace tutti::detail
