// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/config.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/switched.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/sharding.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/optim/averages.hpp>
#include <tutti/optim/class_name.hpp>
#include <tutti/optim/closure.hpp>
#include <tutti/optim/fused_step.hpp>
#include <tutti/train/detail/sharding_support.hpp>
#include <tutti/train/options.hpp>
#include <tutti/train/policy_states.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/setup.hpp>
#include <tutti/train/together.hpp>

/// A run whose model is sharded: what it cannot have beside it.
namespace tutti::train {

/// The model's parameters are always whole, in their own type.
inline bool keeps_whole(const dist::ShardingOptions& options) {
  return options.stage != dist::ShardStage::parameters && !options.param_dtype &&
         !options.cpu_offload;
}

/// What a run has to be told whose parameters are sharded while autocast keeps whole copies of
/// them; empty: nothing.
std::string autocast_notice(const dist::ShardingOptions& options, Precision precision);

/// Warns of that, on rank 0.
void warn_of_autocast(const dist::ShardingOptions& options, const State& state);

/// Why this policy cannot train a sharded model; empty when it can, or is off. A policy says so by
/// `about.no_sharding`, or by `about.no_parameter_sharding` where it can as long as parameters are
/// whole; or by `why_no_sharding()` where that depends on its options. spread: the model is spread
/// by tensor_parallel(), for which `about.no_tensor_parallel` counts as well.
template <class P>
std::string_view why_no_sharding(const P& given, bool whole, bool spread = false) {
  const auto& policy = tutti::detail::unswitched(given);
  if (!tutti::detail::is_on(given)) {
    return {};
  }
  constexpr const About& about = policy_traits<P>::about;
  if constexpr (!about.no_sharding.empty()) {
    return about.no_sharding;
  }
  if (spread && !about.no_tensor_parallel.empty()) {
    return about.no_tensor_parallel;
  }
  if constexpr (!about.no_parameter_sharding.empty()) {
    return whole ? std::string_view() : about.no_parameter_sharding;
  }
  if constexpr (tutti::detail::MayRefuseSharding<tutti::detail::Unswitched<P>>) {
    return policy.why_no_sharding();
  }
  return {};
}

/// Gives a model of nn::deferred_init() its memory; returns null then, and where it has some. With
/// ShardStage::parameters it waits until each rank has its part: returns who knows its values.
std::shared_ptr<tutti::detail::InitTape> put_off(torch::nn::Module& model,
                                                 const dist::ShardingOptions& options,
                                                 const State& state);

/// Shards the run as options say. policies: why the recipe cannot have that; empty: it can.
/// Throws c10::ValueError, on every rank, when something of the run does not go with sharding.
std::unique_ptr<dist::Sharding> make_sharding(const std::string& policies,
                                              const TrainerOptions& options, State& state);

/// Refuses what a run whose model is spread over ranks cannot have. policies: why the recipe cannot
/// have that; empty: it can. Throws c10::ValueError on every rank.
void check_spread(const std::string& policies, const TrainerOptions& options, const State& state);
template <class Engine>
void check_spread(const Engine& engine, const TrainerOptions& options, const State& state) {
  if (state.spread != nullptr) {
    check_spread(engine.why_no_sharding(/*whole=*/false, /*spread=*/true), options, state);
  }
}

/// Shards the run, or averages its gradients, as options say; after AfterLoad. Throws as
/// make_sharding() and make_parallel().
template <class Engine>
void begin_parallel(Engine& engine, const TrainerOptions& options, State& state, Run& run) {
  state.parameters_replaced = false;  // by a policy that goes on: all below is of those there are
  if (state.spread != nullptr) {
    run.fold_into_optimizer = false;  // a rank's norm is of its part
  }
  if (!is_sharded(options.sharding, dist::data_ranks(state))) {
    run.parallel = make_parallel(engine, state, run);
    return;
  }
  auto sharding = make_sharding(
      engine.why_no_sharding(keeps_whole(options.sharding), /*spread=*/false), options, state);
  run.fold_into_optimizer = false;  // averages may be of whole weights, norms are over all ranks
  state.sharding = sharding.get();
  run.parallel = std::move(sharding);
  if (const auto load_parts = std::exchange(run.load_parts, nullptr)) {
    detail::on_every_rank(*state.communicator, load_parts);
  }
  for (const PolicyState& policy : engine.states()) {
    if (policy.take_shards != nullptr && !state.sharding->keeps_whole()) {
      policy.take_shards(policy.policy, state);
    }
  }
}

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/sharding.inl.hpp>
#endif
