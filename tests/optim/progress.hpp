// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/optim/schedule.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

/// A schedule's known values: at which batch what, 1000 batches an epoch, 1000 epochs times ssr.
struct Row {
  std::string name;
  tutti::Schedule schedule;
  double ssr;
  std::vector<std::int64_t> batches;
  std::vector<double> alphas;
};

inline void check_values(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.batches.size(); ++i) {
      INFO(row.name << " at batch " << row.batches[i]);
      const tutti::Progress p = progress_at(row.batches[i], tutti::Time("1000ep") * row.ssr);
      CHECK(row.schedule(p, row.ssr) == Approx(row.alphas[i]).margin(1e-12));
    }
  }
}
