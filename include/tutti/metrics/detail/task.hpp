// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/metric.hpp>
#include <tutti/metrics/detail/sum_metric.hpp>

namespace tutti {

/// What targets say.
enum class Task : std::uint8_t {
  binary,      ///< one of two classes: outputs and targets [N, ...], targets 0 or 1
  multiclass,  ///< one of C classes: outputs [N, C, ...], targets [N, ...] in 0..C-1
  multilabel,  ///< each of L labels, or not: outputs and targets [N, L, ...], targets 0 or 1
};

/// How classes weigh in a metric.
enum class Average : std::uint8_t {
  micro,     ///< every example alike
  macro,     ///< every class that occurs alike
  weighted,  ///< every class by the number of its examples
  none,      ///< none: a value for every class
};

namespace detail {

/// "BinaryPrecision", "MulticlassPrecision", "MultilabelPrecision".
std::string task_name(Task task, std::string_view metric);

/// Columns that the task has: classes, labels, or 1.
/// Throws c10::Error (ValueError) when their number is missing.
std::int64_t task_columns(std::string_view name, Task task, std::int64_t num_classes,
                          std::int64_t num_labels);

/// Refuses outputs and targets whose shapes are not the task's. columns: 0: not known.
void check_task_shapes(std::string_view name, Task task, std::int64_t columns,
                       const at::Tensor& outputs, const at::Tensor& targets);

/// Whether each place of `targets` counts: bool, of their shape.
at::Tensor counted_places(const at::Tensor& targets,
                          const std::optional<std::int64_t>& ignore_index);

/// Scores as probabilities: as they are when all that count lie in [0, 1], else their sigmoid.
/// counted: bool, of the scores' shape; undefined: all count.
at::Tensor sigmoid_of_logits(const at::Tensor& scores, const at::Tensor& counted = {});

/// The same with softmax over the columns. scores: [n, C]; counted: [n].
at::Tensor softmax_of_logits(const at::Tensor& scores, const at::Tensor& counted);

/// [N, C, d1, ...] as [N*d1*..., C].
inline at::Tensor columns_last(const at::Tensor& x) {
  return x.movedim(1, -1).reshape({-1, x.size(1)});
}

/// Reports a value for each class: "<name>_0", "<name>_1", ...
void report_each(const std::vector<double>& values, const std::string& name, MetricReport& report);

/// The average over classes of values, NaN ones left out; macro for Average::none. NaN when all
/// are.
double average_of(const std::vector<double>& values, const std::vector<double>& weights,
                  Average average);

}  // namespace detail

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string task_name(Task task, std::string_view metric) {
  constexpr std::string_view tasks[] = {"Binary", "Multiclass", "Multilabel"};
  return std::string(tasks[static_cast<std::size_t>(task)]).append(metric);
}

TUTTI_INLINE std::int64_t task_columns(std::string_view name, Task task, std::int64_t num_classes,
                                       std::int64_t num_labels) {
  if (task == Task::binary) {
    return 1;
  }
  const bool labels = task == Task::multilabel;
  const std::int64_t columns = labels ? num_labels : num_classes;
  TUTTI_CHECK_VALUE(columns >= 2, name, ": ", labels ? "num_labels" : "num_classes", " is ",
                    columns, ", expected the number of ", labels ? "labels" : "classes",
                    ", 2 or more");
  return columns;
}

TUTTI_INLINE void check_task_shapes(std::string_view name, Task task, std::int64_t columns,
                                    const at::Tensor& outputs, const at::Tensor& targets) {
  if (task == Task::multiclass) {
    bool fits = outputs.dim() == targets.dim() + 1 && outputs.size(0) == targets.size(0);
    for (std::int64_t i = 1; fits && i < targets.dim(); ++i) {
      fits = outputs.size(i + 1) == targets.size(i);
    }
    TUTTI_CHECK_VALUE(fits, name, ": outputs ", outputs.sizes(), " and targets ", targets.sizes(),
                      ", expected scores [N, C, ...] and classes [N, ...]");
  } else {
    TUTTI_CHECK_VALUE(outputs.sizes() == targets.sizes() && outputs.dim() > 0, name, ": outputs ",
                      outputs.sizes(), " and targets ", targets.sizes(), ", expected one shape");
  }
  TUTTI_CHECK_VALUE(
      task == Task::binary || columns == 0 || (outputs.dim() > 1 && outputs.size(1) == columns),
      name, ": outputs ", outputs.sizes(), ", expected ", columns,
      task == Task::multilabel ? " labels" : " classes", " in dimension 1");
}

TUTTI_INLINE at::Tensor counted_places(const at::Tensor& targets,
                                       const std::optional<std::int64_t>& ignore_index) {
  return ignore_index ? targets.ne(*ignore_index)
                      : targets.new_ones({1}, at::kBool).expand(targets.sizes());
}

TUTTI_INLINE at::Tensor sigmoid_of_logits(const at::Tensor& scores, const at::Tensor& counted) {
  const at::Tensor x = full_precision(scores);
  at::Tensor inside = x.ge(0).logical_and(x.le(1));
  if (counted.defined()) {
    inside = inside.logical_or(counted.logical_not());
  }
  return x.where(inside.all(), x.sigmoid());
}

TUTTI_INLINE at::Tensor softmax_of_logits(const at::Tensor& scores, const at::Tensor& counted) {
  const at::Tensor x = full_precision(scores);
  const at::Tensor inside =
      x.ge(0).logical_and(x.le(1)).logical_or(counted.logical_not().unsqueeze(1));
  return x.where(inside.all(), x.softmax(1));
}

TUTTI_INLINE void report_each(const std::vector<double>& values, const std::string& name,
                              MetricReport& report) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    report.value(name + "_" + std::to_string(i), values[i]);
  }
}

TUTTI_INLINE double average_of(const std::vector<double>& values,
                               const std::vector<double>& weights, Average average) {
  double sum = 0;
  double total = 0;
  bool none = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isnan(values[i])) {
      none = false;
      const double weight = average == Average::weighted ? weights[i] : 1;
      sum += weight * values[i];
      total += weight;
    }
  }
  return total == 0 && !none ? 0 : sum / total;
}

}  // namespace tutti::detail

#endif
