// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/dist/data_parallel.hpp>
#include <tutti/dist/detail/comm_hooks.hpp>
#include <tutti/dist/detail/module_state.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

// c10d::Reducer, whose constructor grows with LibTorch's versions.

namespace tutti::dist::detail {

/// Constructs a T from `args` followed by as many of `extra`'s values as it takes: all of them if
/// it can, else one fewer, and so on. A newer LibTorch appends parameters to this constructor.
template <class T, class... Args>
std::unique_ptr<T> make_with(Args&&... args) {
  const std::vector<std::int64_t> no_list;
  if constexpr (std::is_constructible_v<T, Args..., bool, bool, std::vector<std::int64_t>>) {
    return std::make_unique<T>(std::forward<Args>(args)..., false, false, no_list);
  } else if constexpr (std::is_constructible_v<T, Args..., bool, bool>) {
    return std::make_unique<T>(std::forward<Args>(args)..., false, false);
  } else if constexpr (std::is_constructible_v<T, Args..., bool>) {
    return std::make_unique<T>(std::forward<Args>(args)..., false);
  } else if constexpr (std::is_constructible_v<T, Args...>) {
    return std::make_unique<T>(std::forward<Args>(args)...);
  } else {
    static_assert(std::is_constructible_v<T, Args...>,
                  "tutti: this LibTorch's c10d::Reducer has a constructor that is not known; use "
                  "LibTorch 2.7 to 2.15, or SyncStrategy::forced_sync without this header.");
    return nullptr;
  }
}

/// The first buckets: in the first backward pass everything travels together, because the order
/// of gradients is not known yet; it is learned there and the buckets are rebuilt. Models with
/// unused parameters are never rebuilt and start with the final sizes.
inline std::vector<std::vector<std::size_t>> first_buckets(const ModuleState& state,
                                                           const DataParallelOptions& options,
                                                           std::size_t cap) {
  std::vector<std::size_t> limits{std::numeric_limits<std::size_t>::max()};
  if (options.find_unused_parameters) {
    limits = {std::min<std::size_t>(c10d::kDefaultFirstBucketBytes, cap), cap};
  }
  auto [buckets, sizes] =
      c10d::compute_bucket_assignment_by_size(state.trainable, limits, state.sparse);
  std::reverse(buckets.begin(), buckets.end());  // the last layers' gradients are ready first
  return std::move(buckets);
}

/// A reducer and the logger it reports to and cannot do without.
struct LoggedReducer {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
};

inline LoggedReducer make_reducer(const ModuleState& state,
                                  const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                  const DataParallelOptions& options) {
  const auto cap = static_cast<std::size_t>(options.bucket_cap_mb * 1024 * 1024);
  const auto first_cap = std::min<std::size_t>(c10d::kDefaultFirstBucketBytes, cap);
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    names[i] = state.names[i];
  }
  LoggedReducer made;
  made.reducer = make_with<c10d::Reducer>(
      state.trainable, first_buckets(state, options, cap), group, state.sparse,
      static_cast<std::int64_t>(cap), options.find_unused_parameters,
      options.gradient_as_bucket_view, std::move(names), static_cast<std::int64_t>(first_cap));
  made.logger = std::make_shared<c10d::Logger>(made.reducer);
  made.reducer->set_logger(made.logger);
  add_compression(*made.reducer, group, options);
  if (options.static_graph) {
    made.reducer->set_static_graph();
  }
  return made;
}

}  // namespace tutti::dist::detail
