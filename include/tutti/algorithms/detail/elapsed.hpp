// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>

namespace tutti::detail {

// The part of the run that is done, in [0, 1], for the policy `who`. whole_units: counted in whole
// units of max_duration, as the reference does, so that a run of one epoch stays at 0; else batch
// by batch, wherever the length of an epoch is known.
double elapsed(const State& state, bool whole_units, std::string_view who);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE double elapsed(const State& state, bool whole_units, std::string_view who) {
  const Progress progress = state.progress();
  if (whole_units) {
    const std::optional<Time> counted = progress.elapsed();
    TUTTI_CHECK(counted.has_value(), who, ": max_duration is not set, so no part of it is done");
    return counted->value();
  }
  const std::optional<double> exact = progress.elapsed_fraction();
  TUTTI_CHECK(exact.has_value(), who, ": max_duration is not set, so no part of it is done");
  return *exact;
}

}  // namespace tutti::detail

#endif
