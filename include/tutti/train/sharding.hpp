// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include <tutti/config.hpp>
#include <tutti/core/detail/switched.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/optim/closure.hpp>
#include <tutti/train/detail/sharding_support.hpp>
#include <tutti/train/options.hpp>

/// A run whose model is sharded: what it cannot have beside it.
namespace tutti::train {

/// The model's parameters are always whole, in their own type.
inline bool keeps_whole(const dist::ShardingOptions& options) {
  return options.stage != dist::ShardStage::parameters && !options.param_dtype;
}

/// Why this policy cannot train a sharded model; empty when it can, or is off. A policy says so by
/// `about.no_sharding`, or by `about.no_parameter_sharding` where it can as long as parameters are
/// whole; or by
/// `why_no_sharding()` where that depends on its options.
template <class P>
std::string_view why_no_sharding(const P& given, bool whole) {
  const auto& policy = tutti::detail::unswitched(given);
  if (!tutti::detail::is_on(given)) {
    return {};
  }
  constexpr const About& about = policy_traits<P>::about;
  if constexpr (!about.no_sharding.empty()) {
    return about.no_sharding;
  }
  if constexpr (!about.no_parameter_sharding.empty()) {
    return whole ? std::string_view() : about.no_parameter_sharding;
  }
  if constexpr (tutti::detail::MayRefuseSharding<tutti::detail::Unswitched<P>>) {
    return policy.why_no_sharding();
  }
  return {};
}

/// Shards the run as options say. policies: why the recipe cannot have that; empty: it can.
/// Throws c10::ValueError, on every rank, when something of the run does not go with sharding.
std::unique_ptr<dist::Sharding> make_sharding(const std::string& policies,
                                              const TrainerOptions& options, State& state);

}  // namespace tutti::train

#if TUTTI_BODIES

namespace tutti::train {

TUTTI_INLINE std::unique_ptr<dist::Sharding> make_sharding(const std::string& policies,
                                                           const TrainerOptions& options,
                                                           State& state) {
  dist::ShardingOptions sharding = options.sharding;
  const std::string stage = "sharding.stage is " + std::string(to_string(sharding.stage));
  TUTTI_CHECK_VALUE(
      policies.empty(), stage, ", which does not go with ", policies, ". Remove the policy, or ",
      sharding.stage == dist::ShardStage::parameters ? "take a lower stage"
                                                     : "set sharding.stage to ShardStage::none");
  for (const auto& optimizer : state.optimizers) {
    TUTTI_CHECK_VALUE(!optim::calls_closure(*optimizer), stage, ", but the optimizer ",
                      optim::class_name(*optimizer),
                      " runs forward and backward itself and looks at all gradients at once, of "
                      "which each rank has a part; take an optimizer like DecoupledAdamW");
  }
  TUTTI_CHECK_VALUE(!options.data_parallel.sync_strategy, stage,
                    ", and data_parallel.sync_strategy is set, which says when whole gradients are "
                    "averaged; leave it out, the stage says when");
  TUTTI_CHECK_VALUE(
      !state.auto_microbatching || sharding.stage != dist::ShardStage::parameters, stage,
      ", and the microbatch size is \"auto\", by which a rank finds out that it has no memory left "
      "while the others wait for its parameters; set a size, or take ShardStage::gradients");
  sharding.reduce_at_end = sharding.reduce_at_end || state.auto_microbatching;
  TUTTI_CHECK(sharding_support().shard != nullptr, stage,
              ", but the program cannot shard; add #include <tutti/train/sharded.hpp> to the file "
              "that makes the Trainer");
  return sharding_support().shard(sharding, state);
}

}  // namespace tutti::train

#endif
