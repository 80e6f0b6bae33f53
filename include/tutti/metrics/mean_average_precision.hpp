// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/metrics/detail/concat_metric.hpp>
#include <tutti/metrics/detail/task.hpp>

// COCO's evaluation of boxes, on plain numbers: which detection matches which object, and what
// precision and recall follow. Source: pycocotools, `COCOeval`, for boxes.

namespace tutti::detail::coco {

/// A box by its left upper corner and its size.
struct Box {
  double x;
  double y;
  double width;
  double height;
  [[nodiscard]] double area() const { return width * height; }
};

struct Detection {
  Box box;
  double score;
  std::int64_t label;
};

struct Truth {
  Box box;
  std::int64_t label;
  bool crowd;
  double area;  ///< of the object; decides whether it is small, medium or large
};

struct Image {
  std::vector<Detection> detections;
  std::vector<Truth> truths;
};

struct Settings {
  std::vector<double> iou_thresholds;
  std::vector<double> recall_thresholds;    ///< ascending
  std::vector<std::size_t> max_detections;  ///< ascending
  bool one_class = false;                   ///< all labels are one
};

inline constexpr std::size_t areas = 4;  ///< all, small, medium, large
inline constexpr std::array<std::array<double, 2>, areas> area_ranges{
    {{0, 1e10}, {0, 32. * 32}, {32. * 32, 96. * 96}, {96. * 96, 1e10}}};

/// Of one class: averages over recall thresholds, or over nothing. -1 where no object counts.
struct ClassResult {
  std::array<std::vector<double>, areas> precision;  ///< by IoU threshold, most detections
  std::array<std::vector<double>, areas> recall;  ///< by max_detections, mean over IoU thresholds
};

/// Results by label, of every label that occurs.
using Results = std::map<std::int64_t, ClassResult>;

Results evaluate(const std::vector<Image>& images, const Settings& settings);

}  // namespace tutti::detail::coco

namespace tutti {

/// What the four numbers of a box are.
enum class BoxFormat : std::uint8_t {
  xyxy,    ///< left, upper, right and lower edge
  xywh,    ///< left and upper edge, width and height
  cxcywh,  ///< centre, width and height
};

/// What a model found in one image.
struct Detections {
  at::Tensor boxes;   ///< [n, 4], floating, in pixels
  at::Tensor scores;  ///< [n], floating
  at::Tensor labels;  ///< [n], integers from 0 on
};

/// What is in one image.
struct GroundTruths {
  at::Tensor boxes;      ///< [n, 4], floating, in pixels
  at::Tensor labels;     ///< [n], integers from 0 on
  at::Tensor iscrowd{};  ///< [n], 0 or 1: a group of objects, which any number of detections may
                         ///< match and none has to; undefined: 0
  at::Tensor area{};     ///< [n]: size of the object, in pixels; undefined or 0: that of its box
};

/// Options of MeanAveragePrecision.
struct MeanAveragePrecisionOptions {
  BoxFormat box_format = BoxFormat::xyxy;
  std::vector<double> iou_thresholds{};  ///< empty: 0.5, 0.55, ..., 0.95
  std::vector<double> rec_thresholds{};  ///< ascending; empty: 0, 0.01, ..., 1
  std::vector<std::int64_t> max_detection_thresholds{1, 10, 100};  ///< three, of highest score, in
                                                                   ///< an image
  bool class_metrics = false;                                      ///< report each class, too
  Average average = Average::macro;  ///< macro: the mean over classes; micro: all are one class
  std::string prefix{};              ///< what the names of all values begin with
};

/// COCO's mean average precision of boxes, at IoU thresholds from 0.5 to 0.95, and its relatives.
///
/// outputs: detections [N, D, 6], each its box, score and label. targets: objects [N, G, 5 to 7],
/// each its box, label, and where there are such columns iscrowd and area. N images; a label below
/// 0 marks a place that is empty. pack() makes both of lists of Detections and GroundTruths.
///
/// Reports `map`, the mean of precisions; `map_50` and `map_75`, at one IoU threshold; `map_small`,
/// `map_medium`, `map_large`, of objects of less than 32^2 pixels, up to 96^2 and more; recalls
/// `mar_1`, `mar_10`, `mar_100` by max_detection_thresholds, and `mar_small`, `mar_medium`,
/// `mar_large`; with class_metrics `map_per_class_<label>` and `mar_100_per_class_<label>`. -1
/// where no object counts or no IoU threshold is 0.5 or 0.75. compute() is `map`.
/// Keeps all detections and objects. Masks (`iou_type="segm"`) are not there.
/// Throws c10::Error (ValueError) for options or shapes that do not fit.
/// Source: torchmetrics, `torchmetrics.detection.MeanAveragePrecision`, and pycocotools. There
/// `map` is -1 unless one of max_detection_thresholds is 100; here it is of the largest.
class MeanAveragePrecision final : public detail::ConcatMetric {
 public:
  explicit MeanAveragePrecision(MeanAveragePrecisionOptions options = {});

  /// Detections of a batch of images as update() takes them: [N, D, 6], D the most of any image.
  [[nodiscard]] static at::Tensor pack(const std::vector<Detections>& images);
  /// Objects of a batch of images as update() takes them: [N, G, 7].
  [[nodiscard]] static at::Tensor pack(const std::vector<GroundTruths>& images);

  [[nodiscard]] const MeanAveragePrecisionOptions& options() const { return options_; }
  [[nodiscard]] std::string name() const override {
    return options_.prefix + "MeanAveragePrecision";
  }
  [[nodiscard]] std::unique_ptr<Metric> clone() const override {
    return std::make_unique<MeanAveragePrecision>(options_);
  }

  using ConcatMetric::compute;
  [[nodiscard]] double compute(const std::vector<at::Tensor>& states) const override;
  void report(const std::vector<at::Tensor>& states, MetricReport& to) const override;

 private:
  // Rows of detections, of objects, and for each image how many of both.
  [[nodiscard]] std::vector<at::Tensor> no_rows() const override {
    return {at::zeros({0, 6}, at::kDouble), at::zeros({0, 7}, at::kDouble),
            at::zeros({0, 2}, at::kLong)};
  }
  void take_in(const at::Tensor& outputs, const at::Tensor& targets) override;

  // Boxes [..., 4] by corner and size, in double, computed in their own type as the reference does.
  [[nodiscard]] at::Tensor corner_and_size(const at::Tensor& boxes) const;
  static at::Tensor padded(const std::vector<at::Tensor>& rows, std::int64_t columns);
  static std::vector<detail::coco::Image> images(const std::vector<at::Tensor>& states);
  [[nodiscard]] detail::coco::Results results(const std::vector<detail::coco::Image>& images,
                                              bool one_class) const;
  void report_thresholds(const detail::coco::Results& classes, MetricReport& to) const;
  void report_classes(const detail::coco::Results& classes, MetricReport& to) const;

  MeanAveragePrecisionOptions options_;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/metrics/mean_average_precision.inl.hpp>
#endif
