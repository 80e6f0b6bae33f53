// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes tutti's algorithms from the keyword arguments of the reference's.

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/cutmix.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/algorithms/sam.hpp>

#include "golden/arguments.hpp"
#include "golden/runner.hpp"

namespace golden {

inline tutti::BlurPool make_blurpool(const Json& args) {
  const Arguments a(args, "BlurPool");
  tutti::BlurPool options;
  options.replace_convs = a.flag("replace_convs", options.replace_convs);
  options.replace_maxpools = a.flag("replace_maxpools", options.replace_maxpools);
  options.blur_first = a.flag("blur_first", options.blur_first);
  options.min_channels = a.integer("min_channels", options.min_channels);
  options.if_none = tutti::surgery::IfNone::ignore;
  a.done();
  return options;
}

inline tutti::MixUp make_mixup(const Json& args) {
  const Arguments a(args, "MixUp");
  tutti::MixUp options;
  options.alpha = a.number("alpha", options.alpha);
  options.interpolate_loss = a.flag("interpolate_loss", options.interpolate_loss);
  options.input_key = key_of(a, "input_key", 0);
  options.target_key = key_of(a, "target_key", 1);
  a.done();
  return options;
}

inline tutti::CutMix make_cutmix(const Json& args) {
  const Arguments a(args, "CutMix");
  tutti::CutMix options;
  options.alpha = a.number("alpha", options.alpha);
  options.interpolate_loss = a.flag("interpolate_loss", options.interpolate_loss);
  options.uniform_sampling = a.flag("uniform_sampling", options.uniform_sampling);
  options.input_key = key_of(a, "input_key", 0);
  options.target_key = key_of(a, "target_key", 1);
  a.done();
  return options;
}

inline tutti::LabelSmoothing make_label_smoothing(const Json& args) {
  const Arguments a(args, "LabelSmoothing");
  tutti::LabelSmoothing options;
  options.smoothing = a.number("smoothing", options.smoothing);
  options.target_key = key_of(a, "target_key", 1);
  a.done();
  return options;
}

inline tutti::ClippingType clipping_type(const std::string& name) {
  for (const auto type :
       {tutti::ClippingType::norm, tutti::ClippingType::value, tutti::ClippingType::adaptive}) {
    if (to_string(type) == name) {
      return type;
    }
  }
  throw std::invalid_argument("GradientClipping: no type is called " + name);
}

/// The reference has no floor under the norms of weights.
inline constexpr double no_adaptive_floor = 0.0;

/// Also clips where SAM climbs, as the reference does.
inline tutti::GradientClipping make_gradient_clipping(const Json& args) {
  const Arguments a(args, "GradientClipping");
  tutti::GradientClipping options;
  options.clipping_type = clipping_type(a.text("clipping_type", "norm"));
  options.clipping_threshold = a.number("clipping_threshold", 0);
  options.adaptive_floor = no_adaptive_floor;
  options.in_ascent = true;
  a.done();
  return options;
}

/// Running statistics learn from both passes, as in the reference.
inline tutti::SAM make_sam(const Json& args) {
  const Arguments a(args, "SAM");
  tutti::SAM options;
  options.rho = a.number("rho", options.rho);
  options.epsilon = a.number("epsilon", options.epsilon);
  options.interval = a.integer("interval", options.interval);
  options.freeze_statistics = false;
  a.done();
  return options;
}

/// Averages integer buffers and truncates, as the reference does.
inline tutti::EMA make_ema(const Json& args) {
  const Arguments a(args, "EMA");
  tutti::EMA options;
  options.half_life = time_of(a, "half_life", options.half_life);
  if (a.has("smoothing")) {
    options.smoothing = a.number("smoothing", 0);
  }
  options.ema_start = time_of(a, "ema_start", options.ema_start);
  options.update_interval = time_of(a, "update_interval", options.update_interval);
  options.average_integers = true;
  a.done();
  return options;
}

}  // namespace golden
