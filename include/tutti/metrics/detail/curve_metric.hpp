// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/concat_metric.hpp>
#include <tutti/metrics/detail/task.hpp>

namespace tutti::detail {

/// For every score that occurs, from the highest down: how many negative (fps) and positive (tps)
/// examples have that score or a higher one.
struct Curve {
  std::vector<double> fps;
  std::vector<double> tps;
  bool all_targets_zero = true;

  [[nodiscard]] bool empty() const { return tps.empty(); }
  [[nodiscard]] std::size_t size() const { return tps.size(); }
};

/// A metric of the order in which scores put the examples: it keeps all scores and targets.
class CurveMetric : public ConcatMetric {
 public:
  [[nodiscard]] std::string name() const override { return name_; }

  using ConcatMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override;

 protected:
  struct Setting {
    Task task;
    std::int64_t num_classes;
    std::int64_t num_labels;
    Average average;
    std::optional<std::int64_t> ignore_index;
  };
  CurveMetric(std::string_view metric, const Setting& setting, std::string& name);

  /// The value of a curve that has points.
  [[nodiscard]] virtual double area(const Curve& curve) const = 0;

 private:
  [[nodiscard]] std::vector<at::Tensor> no_rows() const override;
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override;

  // The scores and targets of some rows on the host.
  struct Rows {
    at::Tensor scores;   // [n, C], double
    at::Tensor targets;  // [n] or [n, L], int64
  };
  static Rows on_host(const std::vector<at::Tensor>& states);

  [[nodiscard]] double value_of(const double* scores, const std::int64_t* targets,
                                std::int64_t count, std::int64_t score_step,
                                std::int64_t target_step, std::int64_t positive) const;
  [[nodiscard]] std::vector<double> values(const Rows& rows) const;
  [[nodiscard]] std::vector<double> weights(const Rows& rows) const;

  [[nodiscard]] bool is_one() const {
    return setting_.task == Task::binary || setting_.average == Average::micro;
  }

  Setting setting_;
  std::string name_;
  std::int64_t columns_;
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE CurveMetric::CurveMetric(std::string_view metric, const Setting& setting,
                                      std::string& name)
    : setting_(setting) {
  if (name.empty()) {
    name = task_name(setting_.task, metric);
  }
  name_ = name;
  columns_ = task_columns(name_, setting_.task, setting_.num_classes, setting_.num_labels);
  TUTTI_CHECK_VALUE(setting_.task != Task::multiclass || setting_.average != Average::micro, name_,
                    ": the average is micro, expected macro, weighted or none for classes");
}

TUTTI_INLINE double CurveMetric::compute(const std::vector<at::Tensor>& states) const {
  const Rows rows = on_host(states);
  const std::vector<double> each = values(rows);
  return is_one() ? each[0] : average_of(each, weights(rows), setting_.average);
}

TUTTI_INLINE void CurveMetric::report(const std::vector<at::Tensor>& states,
                                      MetricReport& to) const {
  if (is_one() || setting_.average != Average::none) {
    return to.value(compute(states));
  }
  report_each(values(on_host(states)), name_, to);
}

TUTTI_INLINE std::vector<at::Tensor> CurveMetric::no_rows() const {
  const bool labels = setting_.task == Task::multilabel;
  const std::vector<std::int64_t> targets =
      labels ? std::vector<std::int64_t>{0, columns_} : std::vector<std::int64_t>{0};
  return {at::zeros({0, columns_}, at::kFloat), at::zeros(targets, at::kLong)};
}

TUTTI_INLINE void CurveMetric::take_in(const at::Tensor& outputs, const at::Tensor& targets) {
  check_task_shapes(name_, setting_.task, columns_, outputs, targets);
  TUTTI_CHECK_VALUE(outputs.is_floating_point() && !targets.is_floating_point(), name_,
                    ": outputs ", outputs.scalar_type(), " and targets ", targets.scalar_type(),
                    ", expected scores of a floating type and targets of an integer type");
  if (setting_.task == Task::multilabel) {  // what is ignored differs from label to label
    return add({columns_last(sigmoid_of_logits(outputs)),
                columns_last(targets).to(at::kLong, /*non_blocking=*/false, /*copy=*/true)});
  }
  const at::Tensor wanted = targets.flatten();
  at::Tensor scores =
      setting_.task == Task::binary ? outputs.reshape({-1, 1}) : columns_last(outputs);
  const at::Tensor counted = counted_places(wanted, setting_.ignore_index);
  scores = setting_.task == Task::binary ? sigmoid_of_logits(scores, counted.unsqueeze(1))
                                         : softmax_of_logits(scores, counted);
  if (!setting_.ignore_index) {
    return add({scores, wanted.to(at::kLong, /*non_blocking=*/false, /*copy=*/true)});
  }
  const at::Tensor rows = counted.nonzero().squeeze(1);
  add({scores.index_select(0, rows), wanted.index_select(0, rows).to(at::kLong)});
}

TUTTI_INLINE CurveMetric::Rows CurveMetric::on_host(const std::vector<at::Tensor>& states) {
  return {states[0].cpu().to(at::kDouble).contiguous(), states[1].cpu().contiguous()};
}

// Of `count` examples; `positive` is the target that is looked for.
TUTTI_INLINE double CurveMetric::value_of(const double* scores, const std::int64_t* targets,
                                          std::int64_t count, std::int64_t score_step,
                                          std::int64_t target_step, std::int64_t positive) const {
  const bool per_label = setting_.task == Task::multilabel && setting_.ignore_index.has_value();
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!per_label || targets[i * target_step] != *setting_.ignore_index) {
      order.push_back(i);
    }
  }
  const auto score = [&](std::int64_t i) { return scores[i * score_step]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::isnan(score(a)) ? !std::isnan(score(b)) : score(a) > score(b);  // NaN is highest
  });
  Curve curve;
  double seen[2] = {0, 0};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t target = targets[order[i] * target_step];
    seen[target == positive ? 1 : 0] += 1;
    curve.all_targets_zero = curve.all_targets_zero && target == 0;
    if (i + 1 == order.size() || !(score(order[i]) == score(order[i + 1]))) {
      curve.fps.push_back(seen[0]);
      curve.tps.push_back(seen[1]);
    }
  }
  return curve.empty() ? std::numeric_limits<double>::quiet_NaN() : area(curve);
}

TUTTI_INLINE std::vector<double> CurveMetric::values(const Rows& rows) const {
  const std::int64_t count = rows.scores.size(0);
  const auto* scores = rows.scores.const_data_ptr<double>();
  const auto* targets = rows.targets.const_data_ptr<std::int64_t>();
  if (is_one()) {
    return {value_of(scores, targets, count * columns_, 1, 1, 1)};
  }
  const bool labels = setting_.task == Task::multilabel;
  std::vector<double> out;
  for (std::int64_t column = 0; column < columns_; ++column) {
    out.push_back(value_of(scores + column, targets + (labels ? column : 0), count, columns_,
                           labels ? columns_ : 1, labels ? 1 : column));
  }
  return out;
}

TUTTI_INLINE std::vector<double> CurveMetric::weights(const Rows& rows) const {
  std::vector<double> out(static_cast<std::size_t>(columns_), 0);
  const auto* target = rows.targets.const_data_ptr<std::int64_t>();
  const bool labels = setting_.task == Task::multilabel;
  for (std::int64_t i = 0; i < rows.targets.numel(); ++i) {
    if (labels ? target[i] == 1 : target[i] >= 0 && target[i] < columns_) {
      out[static_cast<std::size_t>(labels ? i % columns_ : target[i])] += 1;
    }
  }
  return out;
}

}  // namespace tutti::detail

#endif
