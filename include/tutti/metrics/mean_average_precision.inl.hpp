// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/metrics/mean_average_precision.hpp>

namespace tutti::detail::coco {

/// The detections and objects of one class in one image.
class Pairs {
 public:
  /// Keeps the `most` detections of highest score.
  Pairs(std::vector<Detection> detections, std::vector<Truth> truths, std::size_t most);

  /// What became of the detections for one range of areas, by IoU threshold.
  struct Matches {
    std::vector<std::vector<char>> matched;  // [T][D]
    std::vector<std::vector<char>> ignored;  // [T][D]
    std::size_t objects = 0;                 // that count
  };
  [[nodiscard]] Matches match(const std::array<double, 2>& range,
                              const std::vector<double>& thresholds) const;

  [[nodiscard]] const std::vector<Detection>& detections() const { return detections_; }

 private:
  [[nodiscard]] double overlap(std::size_t detection, std::size_t truth) const {
    return overlaps_[detection * truths_.size() + truth];
  }
  // The object that a detection matches, of those in order; truths_.size(): none.
  [[nodiscard]] std::size_t best(std::size_t detection, double threshold,
                                 const std::vector<std::size_t>& order,
                                 const std::vector<char>& ignore,
                                 const std::vector<char>& taken) const;

  std::vector<Detection> detections_;
  std::vector<Truth> truths_;
  std::vector<double> overlaps_;
};

/// Whether a detection of score `a` comes before one of score `b`; NaN comes last.
TUTTI_INLINE bool is_before(double a, double b) {
  return a > b || (std::isnan(b) && !std::isnan(a));
}

/// Intersection over union; over the detection's own area where the object is a crowd.
TUTTI_INLINE double overlap_of(const Box& detection, const Truth& truth) {
  const Box& box = truth.box;
  const double width =
      std::fmin(detection.x + detection.width, box.x + box.width) - std::fmax(detection.x, box.x);
  const double height =
      std::fmin(detection.y + detection.height, box.y + box.height) - std::fmax(detection.y, box.y);
  if (width <= 0 || height <= 0) {
    return 0;
  }
  const double both = width * height;
  return both / (truth.crowd ? detection.area() : detection.area() + box.area() - both);
}

TUTTI_INLINE Pairs::Pairs(std::vector<Detection> detections, std::vector<Truth> truths,
                          std::size_t most)
    : detections_(std::move(detections)), truths_(std::move(truths)) {
  std::stable_sort(detections_.begin(), detections_.end(),
                   [](const auto& a, const auto& b) { return is_before(a.score, b.score); });
  if (detections_.size() > most) {
    detections_.erase(detections_.begin() + static_cast<std::ptrdiff_t>(most), detections_.end());
  }
  for (const Detection& detection : detections_) {
    for (const Truth& truth : truths_) {
      overlaps_.push_back(overlap_of(detection.box, truth));
    }
  }
}

TUTTI_INLINE std::size_t Pairs::best(std::size_t detection, double threshold,
                                     const std::vector<std::size_t>& order,
                                     const std::vector<char>& ignore,
                                     const std::vector<char>& taken) const {
  std::size_t found = truths_.size();
  double least = std::min(threshold, 1 - 1e-10);
  for (const std::size_t truth : order) {
    if (taken[truth] != 0 && !truths_[truth].crowd) {
      continue;
    }
    if (found != truths_.size() && ignore[found] == 0 && ignore[truth] != 0) {
      break;  // those that are ignored come last
    }
    if (overlap(detection, truth) >= least) {
      least = overlap(detection, truth);
      found = truth;
    }
  }
  return found;
}

TUTTI_INLINE Pairs::Matches Pairs::match(const std::array<double, 2>& range,
                                         const std::vector<double>& thresholds) const {
  const auto outside = [&](double area) { return area < range[0] || area > range[1]; };
  std::vector<char> ignore;
  for (const Truth& truth : truths_) {
    ignore.push_back(truth.crowd || outside(truth.area) ? 1 : 0);
  }
  std::vector<std::size_t> order(truths_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](auto i) { return ignore[i] == 0; });
  Matches out;
  out.objects = static_cast<std::size_t>(std::count(ignore.begin(), ignore.end(), 0));
  for (const double threshold : thresholds) {
    std::vector<char> taken(truths_.size(), 0);
    auto& matched = out.matched.emplace_back(detections_.size(), 0);
    auto& ignored = out.ignored.emplace_back(detections_.size(), 0);
    for (std::size_t d = 0; d < detections_.size(); ++d) {
      const std::size_t truth = best(d, threshold, order, ignore, taken);
      if (truth != truths_.size()) {
        taken[truth] = matched[d] = 1;
        ignored[d] = ignore[truth];
      } else {
        ignored[d] = outside(detections_[d].box.area()) ? 1 : 0;
      }
    }
  }
  return out;
}

/// All detections of a class, the first of each image, by score.
struct Ranked {
  std::vector<std::pair<std::size_t, std::size_t>> places;  // image, detection
};

TUTTI_INLINE Ranked rank(const std::vector<Pairs>& images, std::size_t first) {
  Ranked out;
  for (std::size_t image = 0; image < images.size(); ++image) {
    const auto& detections = images[image].detections();
    for (std::size_t d = 0; d < std::min(first, detections.size()); ++d) {
      out.places.emplace_back(image, d);
    }
  }
  std::stable_sort(out.places.begin(), out.places.end(), [&](const auto& a, const auto& b) {
    return is_before(images[a.first].detections()[a.second].score,
                     images[b.first].detections()[b.second].score);
  });
  return out;
}

/// Precision, the mean over recall thresholds, and recall of ranked detections at one IoU
/// threshold.
TUTTI_INLINE std::pair<double, double> precision_and_recall(
    const Ranked& ranked, const std::vector<Pairs::Matches>& matches, std::size_t threshold,
    double objects, const std::vector<double>& recall_thresholds) {
  std::vector<double> recall;
  std::vector<double> precision;
  double right = 0;
  double wrong = 0;
  for (const auto& [image, detection] : ranked.places) {
    if (matches[image].ignored[threshold][detection] == 0) {
      (matches[image].matched[threshold][detection] != 0 ? right : wrong) += 1;
    }
    recall.push_back(right / objects);
    precision.push_back(right / (wrong + right + std::numeric_limits<double>::epsilon()));
  }
  for (std::size_t i = precision.size(); i > 1; --i) {
    precision[i - 2] = std::max(precision[i - 2], precision[i - 1]);
  }
  double sum = 0;
  for (const double least : recall_thresholds) {
    const auto at = std::lower_bound(recall.begin(), recall.end(), least) - recall.begin();
    if (static_cast<std::size_t>(at) < precision.size()) {
      sum += precision[static_cast<std::size_t>(at)];
    }
  }
  return {sum / static_cast<double>(recall_thresholds.size()), recall.empty() ? 0 : recall.back()};
}

TUTTI_INLINE ClassResult evaluate_class(const std::vector<Pairs>& images,
                                        const Settings& settings) {
  ClassResult out;
  std::vector<Ranked> ranked;
  for (const std::size_t most : settings.max_detections) {
    ranked.push_back(rank(images, most));
  }
  for (std::size_t area = 0; area < areas; ++area) {
    std::vector<Pairs::Matches> matches;
    std::size_t objects = 0;
    for (const Pairs& image : images) {
      matches.push_back(image.match(area_ranges[area], settings.iou_thresholds));
      objects += matches.back().objects;
    }
    out.precision[area].assign(settings.iou_thresholds.size(), -1);
    out.recall[area].assign(settings.max_detections.size(), -1);
    if (objects == 0) {
      continue;
    }
    for (std::size_t m = 0; m < ranked.size(); ++m) {
      double sum = 0;
      for (std::size_t t = 0; t < settings.iou_thresholds.size(); ++t) {
        const auto [precision, recall] = precision_and_recall(
            ranked[m], matches, t, static_cast<double>(objects), settings.recall_thresholds);
        sum += recall;
        out.precision[area][t] = precision;  // the last, of most detections, stays
      }
      out.recall[area][m] = sum / static_cast<double>(settings.iou_thresholds.size());
    }
  }
  return out;
}

TUTTI_INLINE Results evaluate(const std::vector<Image>& images, const Settings& settings) {
  std::map<std::int64_t, std::vector<Pairs>> classes;
  for (const Image& image : images) {
    std::map<std::int64_t, Image> by_label;
    for (const Detection& detection : image.detections) {
      by_label[settings.one_class ? 0 : detection.label].detections.push_back(detection);
    }
    for (const Truth& truth : image.truths) {
      by_label[settings.one_class ? 0 : truth.label].truths.push_back(truth);
    }
    for (auto& [label, part] : by_label) {
      classes[label].emplace_back(std::move(part.detections), std::move(part.truths),
                                  settings.max_detections.back());
    }
  }
  Results out;
  for (const auto& [label, parts] : classes) {
    out.emplace(label, evaluate_class(parts, settings));
  }
  return out;
}

}  // namespace tutti::detail::coco

namespace tutti {

namespace detail {

/// The reference's default thresholds, which are rounded to single precision.
TUTTI_INLINE std::vector<double> even_thresholds(double from, double to, std::int64_t count) {
  const at::Tensor steps = at::linspace(from, to, count, at::kFloat).to(at::kDouble);
  const auto* first = steps.const_data_ptr<double>();
  return {first, first + count};
}

/// The mean over classes in which objects count; -1 without any.
template <class Value>
double mean_over_classes(const coco::Results& classes, Value value) {
  double sum = 0;
  double count = 0;
  for (const auto& [label, result] : classes) {
    if (const double of_class = value(result); of_class >= 0) {
      sum += of_class;
      count += 1;
    }
  }
  return count == 0 ? -1 : sum / count;
}

TUTTI_INLINE double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return sum / static_cast<double>(values.size());
}

}  // namespace detail

TUTTI_INLINE MeanAveragePrecision::MeanAveragePrecision(MeanAveragePrecisionOptions options)
    : options_(std::move(options)) {
  if (options_.iou_thresholds.empty()) {
    options_.iou_thresholds = detail::even_thresholds(0.5, 0.95, 10);
  }
  if (options_.rec_thresholds.empty()) {
    options_.rec_thresholds = detail::even_thresholds(0, 1, 101);
  }
  auto& most = options_.max_detection_thresholds;
  std::sort(most.begin(), most.end());
  TUTTI_CHECK_VALUE(most.size() == 3 && most.front() >= 1, name(),
                    ": max_detection_thresholds are ", most, ", expected three numbers from 1 on");
  TUTTI_CHECK_VALUE(std::is_sorted(options_.rec_thresholds.begin(), options_.rec_thresholds.end()),
                    name(), ": rec_thresholds do not ascend");
  TUTTI_CHECK_VALUE(options_.average == Average::macro || options_.average == Average::micro,
                    name(), ": the average is neither macro nor micro, of which one is expected");
}

TUTTI_INLINE at::Tensor MeanAveragePrecision::padded(const std::vector<at::Tensor>& rows,
                                                     std::int64_t columns) {
  std::int64_t most = 0;
  at::ScalarType type = at::kFloat;
  for (const at::Tensor& image : rows) {
    most = std::max(most, image.size(0));
    type = image.scalar_type() == at::kDouble ? at::kDouble : type;
  }
  const auto device = rows.empty() ? at::Device(at::kCPU) : rows.front().device();
  at::Tensor out = at::full({static_cast<std::int64_t>(rows.size()), most, columns}, -1,
                            at::TensorOptions(type).device(device));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size(0) > 0) {
      out[static_cast<std::int64_t>(i)].narrow(0, 0, rows[i].size(0)).copy_(rows[i]);
    }
  }
  return out;
}

TUTTI_INLINE at::Tensor MeanAveragePrecision::pack(const std::vector<Detections>& images) {
  std::vector<at::Tensor> rows;
  for (const Detections& image : images) {
    const at::Tensor& boxes = image.boxes;
    const std::int64_t count = image.labels.size(0);
    TUTTI_CHECK_VALUE(boxes.numel() == 4 * count && image.scores.size(0) == count,
                      "MeanAveragePrecision: image ", rows.size(), " has boxes ", boxes.sizes(),
                      ", scores ", image.scores.sizes(), " and labels ", image.labels.sizes(),
                      ", expected [n, 4], [n] and [n]");
    const auto column = [&](const at::Tensor& x) { return x.to(boxes.options()).reshape({-1, 1}); };
    rows.push_back(
        at::cat({boxes.reshape({-1, 4}), column(image.scores), column(image.labels)}, 1));
  }
  return padded(rows, 6);
}

TUTTI_INLINE at::Tensor MeanAveragePrecision::pack(const std::vector<GroundTruths>& images) {
  std::vector<at::Tensor> rows;
  for (const GroundTruths& image : images) {
    const at::Tensor& boxes = image.boxes;
    const std::int64_t count = image.labels.size(0);
    const auto fits = [&](const at::Tensor& x) { return !x.defined() || x.numel() == count; };
    TUTTI_CHECK_VALUE(boxes.numel() == 4 * count && fits(image.iscrowd) && fits(image.area),
                      "MeanAveragePrecision: image ", rows.size(), " has boxes ", boxes.sizes(),
                      " and labels ", image.labels.sizes(),
                      ", expected [n, 4] and [n], and iscrowd and area [n] where they are given");
    const auto column = [&](const at::Tensor& x) {
      return x.defined() ? x.to(boxes.options()).reshape({-1, 1}) : boxes.new_zeros({count, 1});
    };
    rows.push_back(at::cat(
        {boxes.reshape({-1, 4}), column(image.labels), column(image.iscrowd), column(image.area)},
        1));
  }
  return padded(rows, 7);
}

TUTTI_INLINE at::Tensor MeanAveragePrecision::corner_and_size(const at::Tensor& boxes) const {
  at::Tensor corner = boxes.narrow(-1, 0, 2);
  at::Tensor size = boxes.narrow(-1, 2, 2);
  if (options_.box_format == BoxFormat::cxcywh) {
    const at::Tensor half = size.mul(0.5);
    size = corner.add(half).sub(corner.sub(half));
    corner = corner.sub(half);
  } else if (options_.box_format == BoxFormat::xyxy) {
    size = size.sub(corner);
  }
  return at::cat({corner, size}, -1).to(at::kDouble);
}

TUTTI_INLINE void MeanAveragePrecision::take_in(const at::Tensor& outputs,
                                                const at::Tensor& targets) {
  TUTTI_CHECK_VALUE(outputs.dim() == 3 && outputs.size(2) == 6 && targets.dim() == 3 &&
                        targets.size(2) >= 5 && targets.size(2) <= 7 &&
                        outputs.size(0) == targets.size(0) && outputs.is_floating_point() &&
                        targets.is_floating_point(),
                    name(), ": outputs ", outputs.scalar_type(), " ", outputs.sizes(),
                    " and targets ", targets.scalar_type(), " ", targets.sizes(),
                    ", expected detections [N, D, 6] and objects [N, G, 5 to 7], floating");
  const at::Tensor found = detail::full_precision(outputs);
  const at::Tensor wanted = detail::full_precision(targets);
  const at::Tensor is_found = found.select(2, 5).ge(0);
  const at::Tensor is_wanted = wanted.select(2, 4).ge(0);
  const auto rows = [&](const at::Tensor& x, const at::Tensor& there, std::int64_t columns) {
    const at::Tensor rest = x.narrow(2, 4, x.size(2) - 4).to(at::kDouble);
    at::Tensor all = at::cat({corner_and_size(x.narrow(2, 0, 4)), rest}, 2);
    all = all.flatten(0, 1).index_select(0, there.flatten().nonzero().squeeze(1));
    return at::cat({all, all.new_zeros({all.size(0), columns - all.size(1)})}, 1);
  };
  add({rows(found, is_found, 6), rows(wanted, is_wanted, 7),
       at::cat({is_found.sum(1, /*keepdim=*/true), is_wanted.sum(1, /*keepdim=*/true)}, 1)});
}

TUTTI_INLINE std::vector<detail::coco::Image> MeanAveragePrecision::images(
    const std::vector<at::Tensor>& states) {
  const at::Tensor found = states[0].cpu().contiguous();
  const at::Tensor wanted = states[1].cpu().contiguous();
  const at::Tensor counts = states[2].cpu().contiguous();
  const auto* detection = found.const_data_ptr<double>();
  const auto* object = wanted.const_data_ptr<double>();
  const auto* count = counts.const_data_ptr<std::int64_t>();
  std::vector<detail::coco::Image> out(static_cast<std::size_t>(counts.size(0)));
  for (auto& image : out) {
    for (std::int64_t i = 0; i < count[0]; ++i, detection += 6) {
      const detail::coco::Box box{detection[0], detection[1], detection[2], detection[3]};
      image.detections.push_back({box, detection[4], static_cast<std::int64_t>(detection[5])});
    }
    for (std::int64_t i = 0; i < count[1]; ++i, object += 7) {
      const detail::coco::Box box{object[0], object[1], object[2], object[3]};
      image.truths.push_back({box, static_cast<std::int64_t>(object[4]), object[5] != 0,
                              object[6] > 0 ? object[6] : box.area()});
    }
    count += 2;
  }
  return out;
}

TUTTI_INLINE detail::coco::Results MeanAveragePrecision::results(
    const std::vector<detail::coco::Image>& images, bool one_class) const {
  detail::coco::Settings settings{options_.iou_thresholds, options_.rec_thresholds, {}, one_class};
  for (const std::int64_t most : options_.max_detection_thresholds) {
    settings.max_detections.push_back(static_cast<std::size_t>(most));
  }
  return detail::coco::evaluate(images, settings);
}

TUTTI_INLINE double MeanAveragePrecision::compute(const std::vector<at::Tensor>& states) const {
  return detail::mean_over_classes(
      results(images(states), options_.average == Average::micro),
      [](const auto& result) { return detail::mean_of(result.precision[0]); });
}

TUTTI_INLINE void MeanAveragePrecision::report_thresholds(const detail::coco::Results& classes,
                                                          MetricReport& to) const {
  const auto& thresholds = options_.iou_thresholds;
  for (const auto& [what, threshold] : {std::pair{"map_50", 0.5}, std::pair{"map_75", 0.75}}) {
    const auto place = std::find(thresholds.begin(), thresholds.end(), threshold);
    const auto at = static_cast<std::size_t>(place - thresholds.begin());
    const bool there = place != thresholds.end();
    to.value(options_.prefix + what, detail::mean_over_classes(classes, [&](const auto& of) {
               return there ? of.precision[0][at] : -1;
             }));
  }
}

TUTTI_INLINE void MeanAveragePrecision::report_classes(const detail::coco::Results& classes,
                                                       MetricReport& to) const {
  const std::string& prefix = options_.prefix;
  const std::string most = std::to_string(options_.max_detection_thresholds.back());
  for (const auto& [label, result] : classes) {
    const std::string number = std::to_string(label);
    to.value(prefix + "map_per_class_" + number, detail::mean_of(result.precision[0]));
    to.value(prefix + "mar_" + most + "_per_class_" + number, result.recall[0].back());
  }
}

TUTTI_INLINE void MeanAveragePrecision::report(const std::vector<at::Tensor>& states,
                                               MetricReport& to) const {
  const auto seen = images(states);
  const bool micro = options_.average == Average::micro;
  const auto classes = results(seen, micro);
  const auto put = [&](const std::string& what, auto value) {
    to.value(options_.prefix + what, detail::mean_over_classes(classes, value));
  };
  put("map", [](const auto& of) { return detail::mean_of(of.precision[0]); });
  report_thresholds(classes, to);
  const char* sizes[] = {"", "small", "medium", "large"};
  for (std::size_t area = 1; area < detail::coco::areas; ++area) {
    put(std::string("map_") + sizes[area],
        [&](const auto& of) { return detail::mean_of(of.precision[area]); });
  }
  for (std::size_t i = 0; i < options_.max_detection_thresholds.size(); ++i) {
    put("mar_" + std::to_string(options_.max_detection_thresholds[i]),
        [&](const auto& of) { return of.recall[0][i]; });
  }
  for (std::size_t area = 1; area < detail::coco::areas; ++area) {
    put(std::string("mar_") + sizes[area], [&](const auto& of) { return of.recall[area].back(); });
  }
  if (options_.class_metrics) {
    report_classes(micro ? results(seen, /*one_class=*/false) : classes, to);
  }
}

}  // namespace tutti
