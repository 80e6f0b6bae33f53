// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/confusion_matrix.hpp>

namespace tutti {

TUTTI_INLINE ConfusionMatrix::ConfusionMatrix(ConfusionMatrixOptions options)
    : options_(std::move(options)) {
  if (options_.name.empty()) {
    options_.name = detail::task_name(options_.task, "ConfusionMatrix");
  }
  const std::int64_t columns =
      detail::task_columns(options_.name, options_.task, options_.num_classes, options_.num_labels);
  (options_.task == Task::multiclass ? classes_ : labels_) = columns;
  TUTTI_CHECK_VALUE(options_.threshold >= 0 && options_.threshold <= 1, options_.name,
                    ": threshold is ", options_.threshold, ", expected a number in [0, 1]");
}

TUTTI_INLINE std::vector<at::Tensor> ConfusionMatrix::zeros() const {
  return {at::zeros({labels_, classes_, classes_}, at::kLong)};
}

TUTTI_INLINE at::Tensor ConfusionMatrix::said(const at::Tensor& outputs, const at::Tensor& targets,
                                              const at::Tensor& counted) const {
  if (options_.task != Task::multiclass || outputs.dim() == targets.dim() + 1) {
    detail::check_task_shapes(options_.name, options_.task,
                              options_.task == Task::multiclass ? classes_ : labels_, outputs,
                              targets);
  } else {
    TUTTI_CHECK_VALUE(outputs.sizes() == targets.sizes() && !outputs.is_floating_point(),
                      options_.name, ": outputs ", outputs.scalar_type(), " ", outputs.sizes(),
                      " and targets ", targets.sizes(),
                      ", expected scores [N, C, ...] and classes [N, ...], or classes for both");
  }
  if (!outputs.is_floating_point()) {
    return outputs.to(at::kLong);
  }
  if (options_.task == Task::multiclass) {
    return outputs.argmax(1);
  }
  const at::Tensor among = options_.task == Task::binary ? counted : at::Tensor{};
  return detail::sigmoid_of_logits(outputs, among).gt(options_.threshold).to(at::kLong);
}

TUTTI_INLINE void ConfusionMatrix::take_in(const at::Tensor& outputs, const at::Tensor& targets) {
  at::Tensor counted = detail::counted_places(targets, options_.ignore_index);
  at::Tensor classes = said(outputs, targets, counted);
  const at::Tensor wanted = targets.to(at::kLong);
  for (const at::Tensor& x : {classes, wanted}) {
    counted = counted.logical_and(x.ge(0)).logical_and(x.lt(classes_));
  }
  at::Tensor cell = wanted.mul(classes_).add(classes);
  if (options_.task == Task::multilabel) {
    cell = detail::columns_last(cell);
    counted = detail::columns_last(counted);
    const at::Tensor number = cell.new_ones({labels_}).cumsum(0).sub(1);
    cell = cell.add(number.mul(classes_ * classes_));
  }
  add({detail::class_counts(cell, counted, labels_ * classes_ * classes_)
           .view({labels_, classes_, classes_})});
}

TUTTI_INLINE at::Tensor ConfusionMatrix::matrix(const std::vector<at::Tensor>& states) const {
  at::Tensor out = states[0].cpu();
  if (options_.normalize != MatrixShare::none) {
    out = out.to(at::kDouble);
    const std::vector<std::int64_t> over =
        options_.normalize == MatrixShare::targets       ? std::vector<std::int64_t>{2}
        : options_.normalize == MatrixShare::predictions ? std::vector<std::int64_t>{1}
                                                         : std::vector<std::int64_t>{1, 2};
    out = out.div(out.sum(over, /*keepdim=*/true).clamp_min(1));
  }
  return options_.task == Task::multilabel ? out : out[0];
}

TUTTI_INLINE double ConfusionMatrix::compute(const std::vector<at::Tensor>& states) const {
  const at::Tensor counts = states[0].cpu();
  const auto total = static_cast<double>(counts.sum().item<std::int64_t>());
  const at::Tensor right = counts.diagonal(0, 1, 2).sum();
  return total == 0 ? 0 : static_cast<double>(right.item<std::int64_t>()) / total;
}

TUTTI_INLINE void ConfusionMatrix::report(const std::vector<at::Tensor>& states,
                                          MetricReport& to) const {
  const at::Tensor cells = matrix(states).to(at::kDouble).contiguous();
  const auto* cell = cells.const_data_ptr<double>();
  const auto text = [&](double x) {
    return options_.normalize == MatrixShare::none ? std::to_string(static_cast<std::int64_t>(x))
                                                   : std::to_string(x);
  };
  const bool labels = options_.task == Task::multilabel;
  std::vector<std::string> columns;
  if (labels) {
    columns.emplace_back("label");
  }
  columns.emplace_back("target");
  for (std::int64_t c = 0; c < classes_; ++c) {
    columns.push_back(std::to_string(c));
  }
  std::vector<std::vector<std::string>> rows;
  for (std::int64_t i = 0; i < labels_ * classes_; ++i) {
    auto& row = rows.emplace_back();
    if (labels) {
      row.push_back(std::to_string(i / classes_));
    }
    row.push_back(std::to_string(i % classes_));
    for (std::int64_t c = 0; c < classes_; ++c) {
      row.push_back(text(cell[i * classes_ + c]));
    }
  }
  to.table(columns, rows);
}

}  // namespace tutti
