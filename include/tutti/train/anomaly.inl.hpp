// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/anomaly.hpp>

namespace tutti::train {

TUTTI_INLINE AnomalyScope::AnomalyScope(bool on)
    : on_(on),
      was_on_(torch::autograd::AnomalyMode::is_enabled()),
      checked_nan_(torch::autograd::AnomalyMode::should_check_nan()) {
  if (on_) {
    torch::autograd::AnomalyMode::set_enabled(true, /*check_nan=*/true);
  }
}

TUTTI_INLINE AnomalyScope::~AnomalyScope() {
  if (on_) {
    torch::autograd::AnomalyMode::set_enabled(was_on_, checked_nan_);
  }
}

namespace detail {

// "weights that are not finite: a, b, and 3 more"
TUTTI_INLINE std::string not_finite(const State& state, bool gradients) {
  constexpr int shown = 5;
  std::string names;
  int found = 0;
  for (const auto& item : state.model->named_parameters()) {
    const at::Tensor tensor = gradients ? item.value().grad() : item.value().detach();
    if (tensor.defined() && !tensor.isfinite().all().item<bool>() && found++ < shown) {
      names += (names.empty() ? "" : ", ") + item.key();
    }
  }
  if (found > shown) {
    names += ", and " + std::to_string(found - shown) + " more";
  }
  return names;
}

}  // namespace detail

TUTTI_INLINE void explain_anomaly(const State& state, const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  if (text.find("returned nan values") == std::string::npos) {
    return;
  }
  const std::string weights = detail::not_finite(state, false);
  const std::string gradients = detail::not_finite(state, true);
  TUTTI_CHECK(false, "detect_anomaly: ", text, " That was in batch ", state.timestamp.batch,
              " of the run, epoch ", state.timestamp.epoch, ", whose loss is ",
              state.loss.item<double>(),
              ". Weights that are not finite: ", weights.empty() ? "none" : weights,
              "; gradients so far: ", gradients.empty() ? "none" : gradients);
}

}  // namespace tutti::train
