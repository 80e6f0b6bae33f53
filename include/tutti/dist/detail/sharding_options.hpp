// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/sharding.hpp>

#include <c10/core/ScalarType.h>

// What options of sharding may be.

namespace tutti::dist::detail {

/// What has to be the same on all ranks, in one line.
std::string text_of(const ShardingOptions& options);

/// Throws c10::Error saying what does not fit a run of so many ranks.
void check_options(const ShardingOptions& options, int ranks);

}  // namespace tutti::dist::detail

#if TUTTI_BODIES

namespace tutti::dist::detail {

TUTTI_INLINE std::string text_of(const ShardingOptions& options) {
  const auto type = [](const std::optional<at::ScalarType>& of) {
    return of ? std::string(c10::toString(*of)) : std::string("own");
  };
  return "sharding stage " + std::string(to_string(options.stage)) + ", shard_degree " +
         std::to_string(options.shard_degree) + ", units " +
         c10::str(at::ArrayRef<std::string>(options.units)) + ", param_dtype " +
         type(options.param_dtype) + ", reduce_dtype " + type(options.reduce_dtype) +
         ", cpu_offload " + (options.cpu_offload ? "true" : "false") + ", reduce_at_end " +
         (options.reduce_at_end ? "true" : "false") + ", overlap_reduce " +
         (!options.overlap_reduce   ? "own"
          : *options.overlap_reduce ? "true"
                                    : "false") +
         ", reshard_after_forward " + (options.reshard_after_forward ? "true" : "false") +
         ", check_reads " + (options.check_reads ? "true" : "false");
}

TUTTI_INLINE void check_options(const ShardingOptions& options, int ranks) {
  TUTTI_CHECK(options.stage != ShardStage::none,
              "sharding: stage is none, so nothing is sharded; set it to ShardStage::optimizer, "
              "gradients or parameters, or use dist::wrap");
  TUTTI_CHECK(
      options.shard_degree >= 0 && (options.shard_degree == 0 || ranks % options.shard_degree == 0),
      "sharding: shard_degree is ", options.shard_degree, " in a run of ", ranks,
      " ranks, expected 0 (all of them) or a number that divides theirs");
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
