// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/detail/sharding_options.hpp>
#include <tutti/dist/sharding.hpp>

namespace tutti::dist::detail {

/// With whom this rank shares what.
struct RankGroups {
  std::shared_ptr<Communicator> copy;       ///< who have one copy of the model together
  std::shared_ptr<Communicator> same_part;  ///< who have the same part of other copies; null: one
  std::shared_ptr<Communicator> near;  ///< who keep units together between their passes; null: not
                                       ///< fewer than have a copy, or one
};

/// Those of a run of all ranks of `group`; a collective. options: as check_options() wants them.
RankGroups rank_groups(const std::shared_ptr<Communicator>& group, const ShardingOptions& options);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE RankGroups rank_groups(const std::shared_ptr<Communicator>& group,
                                    const ShardingOptions& options) {
  RankGroups out{.copy = group, .same_part = nullptr, .near = nullptr};
  const int rank = group->rank();
  const int degree = options.shard_degree == 0 ? group->size() : options.shard_degree;
  const auto neighbours = [&](int count) {
    std::vector<int> ranks(static_cast<std::size_t>(count));
    std::iota(ranks.begin(), ranks.end(), rank / count * count);
    return group->subgroup(ranks);
  };
  if (degree < group->size()) {
    out.copy = neighbours(degree);
    std::vector<int> same_part;
    for (int other = rank % degree; other < group->size(); other += degree) {
      same_part.push_back(other);
    }
    out.same_part = group->subgroup(same_part);
  }
  const int among = kept_among(options, degree);
  if (options.stage == ShardStage::parameters && among > 1) {
    out.near = neighbours(among);
  }
  return out;
}

}  // namespace tutti::dist::detail

#endif
