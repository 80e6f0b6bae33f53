// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <tutti/core/comparison.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>

namespace tutti {

namespace detail {

/// State::metric for a policy that monitors one.
/// Throws c10::ValueError with the names that exist.
inline double monitored(const State& state, std::string_view policy, std::string_view label,
                        std::string_view metric) {
  try {
    return state.metric(label, metric);
  } catch (const c10::ValueError& error) {
    TUTTI_CHECK_VALUE(false, policy, ": ", error.what_without_backtrace(),
                      ". Set monitor to one of these, or return the metric from the model's "
                      "metrics().");
    throw;  // not reached
  }
}

/// Says that a fit came to its end without a look at the set, as when its label is misspelt.
/// consequence: what could not be done, behind "so nothing could".
inline void warn_of_unseen_set(std::string_view policy, std::string_view label,
                               std::string_view consequence = "stop the run") {
  TORCH_WARN(policy, ": the set \"", label, "\" has not been evaluated, so nothing could ",
             consequence,
             "; set dataloader_label to \"train\" or to the label of an evaluation set that is due "
             "during fit");
}

}  // namespace detail

}  // namespace tutti
