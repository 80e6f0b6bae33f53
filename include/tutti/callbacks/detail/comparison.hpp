// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <tutti/config.hpp>
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

/// Warns on rank 0 where neither the user nor the metric's name says which value is better.
/// option, less, greater: as for unknown_direction().
void warn_of_direction(const State& state, std::string_view policy, std::string_view option,
                       Comparison comparison, std::string_view metric,
                       std::string_view less = "less", std::string_view greater = "greater");

/// Warns on rank 0, at FitStart, of a label that is neither "train" nor an evaluation set's of the
/// fit. Where the fit has no set at all, one may come with the next fit.
void warn_of_label(const State& state, std::string_view policy, std::string_view label);

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

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void warn_of_direction(const State& state, std::string_view policy,
                                    std::string_view option, Comparison comparison,
                                    std::string_view metric, std::string_view less,
                                    std::string_view greater) {
  const std::string said = unknown_direction(policy, option, comparison, metric, less, greater);
  if (state.rank == 0 && !said.empty()) {
    TORCH_WARN(said);
  }
}

TUTTI_INLINE void warn_of_label(const State& state, std::string_view policy,
                                std::string_view label) {
  std::string labels;
  bool known = label == "train" || state.rank != 0 || state.eval_labels.empty();
  for (const std::string& one : state.eval_labels) {
    known = known || one == label;
    labels += (labels.empty() ? "" : ", ") + one;
  }
  if (!known) {
    TORCH_WARN(policy, ": dataloader_label is \"", label,
               "\", and there is no evaluation set of that name, but: ", labels,
               "; set it to the label of one");
  }
}

}  // namespace tutti::detail

#endif
