// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes tutti's image algorithms from the keyword arguments of the reference's.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/algorithms/augmix.hpp>
#include <tutti/algorithms/colout.hpp>
#include <tutti/algorithms/cutout.hpp>
#include <tutti/algorithms/detail/elapsed.hpp>
#include <tutti/algorithms/detail/loss_targets.hpp>
#include <tutti/algorithms/progressive_resizing.hpp>
#include <tutti/algorithms/randaugment.hpp>
#include <tutti/algorithms/selective_backprop.hpp>

#include "golden/arguments.hpp"
#include "golden/runner.hpp"

namespace golden {

inline tutti::CutOut make_cutout(const Json& args) {
  const Arguments a(args, "CutOut");
  tutti::CutOut options;
  options.num_holes = a.integer("num_holes", options.num_holes);
  options.length = a.number("length", options.length);
  options.uniform_sampling = a.flag("uniform_sampling", options.uniform_sampling);
  options.input_key = key_of(a, "input_key", 0);
  a.done();
  return options;
}

inline tutti::ResizeTarget resize_target(const Arguments& a) {
  if (!a.has("resize_target")) {
    return tutti::ResizeTarget::automatic;
  }
  if (const Json& given = a.json("resize_target"); given.is_string()) {
    if (lower_case(given.string()) != "auto") {
      throw std::invalid_argument("ColOut: resize_target is " + given.string());
    }
    return tutti::ResizeTarget::automatic;
  }
  return a.flag("resize_target", false) ? tutti::ResizeTarget::always : tutti::ResizeTarget::never;
}

inline tutti::ColOut make_colout(const Json& args) {
  const Arguments a(args, "ColOut");
  tutti::ColOut options;
  options.p_row = a.number("p_row", options.p_row);
  options.p_col = a.number("p_col", options.p_col);
  options.batch = a.flag("batch", options.batch);
  options.resize_target = resize_target(a);
  options.input_key = key_of(a, "input_key", 0);
  options.target_key = key_of(a, "target_key", 1);
  a.done();
  return options;
}

/// In either case, as in the reference.
inline tutti::ResizeMode resize_mode(std::string name) {
  name = lower_case(std::move(name));
  for (const auto mode : {tutti::ResizeMode::crop, tutti::ResizeMode::resize}) {
    if (to_string(mode) == name) {
      return mode;
    }
  }
  throw std::invalid_argument("ProgressiveResizing, resize_batch: no mode is called " + name);
}

/// Counts time in whole units of max_duration, as the reference does.
inline tutti::ProgressiveResizing make_progressive_resizing(const Json& args) {
  const Arguments a(args, "ProgressiveResizing");
  tutti::ProgressiveResizing options;
  options.mode = resize_mode(a.text("mode", "resize"));
  options.initial_scale = a.number("initial_scale", options.initial_scale);
  options.finetune_fraction = a.number("finetune_fraction", options.finetune_fraction);
  options.delay_fraction = a.number("delay_fraction", options.delay_fraction);
  options.size_increment = a.integer("size_increment", options.size_increment);
  options.resize_targets = a.flag("resize_targets", options.resize_targets);
  options.whole_units = true;
  options.input_key = key_of(a, "input_key", 0);
  options.target_key = key_of(a, "target_key", 1);
  a.done();
  return options;
}

/// What the reference hands to resize_batch, where tutti hands on sides: with a factor a side may
/// come out one short, and a full width that is no multiple of size_increment is rounded too.
inline double reference_factor(const tutti::ProgressiveResizing& policy, double elapsed,
                               std::int64_t width) {
  const auto increment = static_cast<double>(policy.size_increment);
  const auto full = static_cast<double>(width);
  return std::nearbyint(full * policy.scale_at(elapsed) / increment) * increment / full;
}

/// ProgressiveResizing that does so.
struct FactorResizing final {
  static constexpr std::string_view name = tutti::ProgressiveResizing::name;
  tutti::ProgressiveResizing policy{};
  tutti::Rng rng{};

  void validate() const { policy.validate(); }
  void apply(tutti::AfterDataloader /*event*/, tutti::State& state) {
    at::Tensor& x = tutti::detail::inputs_of(state.batch, policy.input_key);
    const double elapsed = tutti::detail::elapsed(state, policy.whole_units, name);
    const double factor = reference_factor(policy, elapsed, x.size(3));
    at::Tensor none;
    at::Tensor& target =
        policy.resize_targets ? tutti::detail::targets_of(state.batch, policy.target_key) : none;
    auto [input, resized] = tutti::functional::resize_batch(
        x, target, factor, rng, {.mode = policy.mode, .resize_targets = policy.resize_targets});
    x = std::move(input);
    target = std::move(resized);
  }
};

/// Counts time in whole units of max_duration, passes whole batches and lets running statistics
/// learn from choosing, as the reference does.
inline tutti::SelectiveBackprop make_selective_backprop(const Json& args) {
  const Arguments a(args, "SelectiveBackprop");
  tutti::SelectiveBackprop options;
  options.start = a.number("start", options.start);
  options.end = a.number("end", options.end);
  options.keep = a.number("keep", options.keep);
  options.scale_factor = a.number("scale_factor", options.scale_factor);
  options.interrupt = a.integer("interrupt", options.interrupt);
  options.freeze_statistics = false;
  options.whole_units = true;
  options.whole_batch = true;
  options.input_key = key_of(a, "input_key", 0);
  a.only("target_key", 1);  // tutti chooses from all tensors of a batch
  a.done();
  return options;
}

inline tutti::AugmentationSet augmentation_set(const std::string& name) {
  for (const auto set : {tutti::AugmentationSet::all, tutti::AugmentationSet::safe,
                         tutti::AugmentationSet::original}) {
    if (to_string(set) == name) {
      return set;
    }
  }
  throw std::invalid_argument("AugMix, RandAugment: no set is called " + name);
}

inline tutti::RandAugment make_randaugment(const Json& args) {
  const Arguments a(args, "RandAugment");
  tutti::RandAugment options;
  options.severity = a.number("severity", options.severity);
  options.depth = a.integer("depth", options.depth);
  options.augmentation_set = augmentation_set(a.text("augmentation_set", "all"));
  a.done();
  return options;
}

inline tutti::AugMix make_augmix(const Json& args) {
  const Arguments a(args, "AugMix");
  tutti::AugMix options;
  options.severity = a.number("severity", options.severity);
  options.depth = a.integer("depth", options.depth);
  options.width = a.integer("width", options.width);
  options.alpha = a.number("alpha", options.alpha);
  options.augmentation_set = augmentation_set(a.text("augmentation_set", "all"));
  a.done();
  return options;
}

}  // namespace golden
