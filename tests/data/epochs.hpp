// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/batch.hpp>

/// The batches of an epoch, from the `first` on.
template <class Loader>
std::vector<tutti::Batch> epoch_of(Loader loader, std::int64_t epoch, std::int64_t first = 0) {
  std::vector<tutti::Batch> out;
  for (loader.start(epoch, first); auto batch = loader.next();) {
    out.push_back(*batch);
  }
  return out;
}

/// They have equal inputs and targets.
inline bool same(const std::vector<tutti::Batch>& a, const std::vector<tutti::Batch>& b) {
  bool all = a.size() == b.size();
  for (std::size_t i = 0; all && i < a.size(); ++i) {
    all = a[i].inputs().equal(b[i].inputs()) && a[i].targets().equal(b[i].targets());
  }
  return all;
}
