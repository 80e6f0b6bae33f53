// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/state.hpp>

namespace tutti::detail {

/// The part of the run that is done, 0 to 1; 0 where no length is known. Epochs count by batches,
/// by the loader's length or by that of the epochs so far.
inline double part_done(const State& state) {
  const Timestamp& at = state.timestamp;
  if (state.max_duration.unit() == TimeUnit::epoch) {
    double length = static_cast<double>(state.train_dataloader_len);
    if (at.epoch > 0) {
      length = static_cast<double>(at.batch - at.batch_in_epoch) / static_cast<double>(at.epoch);
    }
    if (length > 0) {
      return static_cast<double>(at.batch) / (state.max_duration.value() * length);
    }
  }
  return state.progress().elapsed_fraction().value_or(0);
}

}  // namespace tutti::detail
