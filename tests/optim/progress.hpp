#pragma once

#include <tutti/core/time.hpp>

#include <cstdint>

/// A run after `batch` batches of 4 samples and 32 tokens, `loader` batches to an epoch.
inline tutti::Progress progress_at(std::int64_t batch, tutti::Time max_duration,
                                   std::int64_t loader = 1000) {
  tutti::Progress p{.max_duration = max_duration, .dataloader_len = loader};
  p.timestamp.batch = batch;
  p.timestamp.epoch = batch / loader;
  p.timestamp.batch_in_epoch = batch % loader;
  p.timestamp.sample = 4 * batch;
  p.timestamp.token = 32 * batch;
  return p;
}
