// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <tutti/config.hpp>

/// COCO's evaluation of boxes, on plain numbers: which detection matches which object, and what
/// precision and recall follow. Source: pycocotools, `COCOeval`, for boxes.
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

#if TUTTI_BODIES

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

#endif
