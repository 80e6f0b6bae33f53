// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <variant>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/sharding.hpp>

#include <c10/core/ScalarType.h>

// What options of sharding may be.

namespace tutti::dist::detail {

/// So many ranks keep a unit together between its passes, of `degree` that have a copy: 1 by
/// itself, 0 all.
///
/// Throws c10::ValueError for a number that does not divide theirs.
int kept_among(const ShardingOptions& options, int degree);

/// What has to be the same on all ranks, in one line.
std::string text_of(const ShardingOptions& options);

/// Throws c10::Error saying what does not fit a run of so many ranks.
void check_options(const ShardingOptions& options, int ranks);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE int kept_among(const ShardingOptions& options, int degree) {
  if (const bool* const all = std::get_if<bool>(&options.reshard_after_forward)) {
    return *all ? 0 : 1;
  }
  const int ranks = std::get<int>(options.reshard_after_forward);
  TUTTI_CHECK_VALUE(ranks >= 1 && degree % ranks == 0, "sharding: reshard_after_forward is ", ranks,
                    ", where ", degree,
                    " ranks have a copy of the model together; expected true, false or a divisor "
                    "of their number");
  return ranks > 1 && ranks == degree ? 0 : ranks;
}

TUTTI_INLINE std::string text_of(const ShardingOptions& options) {
  const auto type = [](const std::optional<at::ScalarType>& of) {
    return of ? std::string(c10::toString(*of)) : std::string("own");
  };
  const int* const number = std::get_if<int>(&options.reshard_after_forward);
  return "sharding stage " + std::string(to_string(options.stage)) + ", shard_degree " +
         std::to_string(options.shard_degree) + ", units " +
         c10::str(at::ArrayRef<std::string>(options.units)) + ", ignored " +
         c10::str(at::ArrayRef<std::string>(options.ignored)) + ", param_dtype " +
         type(options.param_dtype) + ", reduce_dtype " + type(options.reduce_dtype) +
         ", cpu_offload " + (options.cpu_offload ? "true" : "false") + ", reduce_at_end " +
         (options.reduce_at_end ? "true" : "false") + ", overlap_reduce " +
         (!options.overlap_reduce   ? "own"
          : *options.overlap_reduce ? "true"
                                    : "false") +
         ", reshard_after_forward " +
         (number != nullptr             ? std::to_string(*number)
          : kept_among(options, 0) == 0 ? "true"
                                        : "false");
}

TUTTI_INLINE void check_options(const ShardingOptions& options, int ranks) {
  TUTTI_CHECK(options.stage != ShardStage::none,
              "sharding: stage is none, so nothing is sharded; set it to ShardStage::optimizer, "
              "gradients or parameters, or use dist::wrap");
  TUTTI_CHECK(
      options.shard_degree >= 0 && (options.shard_degree == 0 || ranks % options.shard_degree == 0),
      "sharding: shard_degree is ", options.shard_degree, " in a run of ", ranks,
      " ranks, expected 0 (all of them) or a number that divides theirs");
  kept_among(options, options.shard_degree == 0 ? ranks : options.shard_degree);
  TUTTI_CHECK(
      !options.reduce_at_end || options.stage != ShardStage::parameters,
      "sharding: gradients are to be averaged at the end of the step, so that no rank waits "
      "in a backward pass for one that has no memory left; but with "
      "ShardStage::parameters ranks wait for each other's parameters all along; set a "
      "microbatch size that fits, or take ShardStage::gradients");
  for (const auto& type : {options.param_dtype, options.reduce_dtype}) {
    TUTTI_CHECK(!type || c10::isFloatingType(*type), "sharding: param_dtype or reduce_dtype is ",
                c10::toString(type.value_or(at::kFloat)), ", expected a floating type");
  }
}

}  // namespace tutti::dist::detail

#endif
