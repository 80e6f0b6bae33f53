// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/config.hpp>
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
  return options.stage != dist::ShardStage::parameters && !options.param_dtype;
}

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

TUTTI_INLINE void check_spread(const std::string& policies, const TrainerOptions& options,
                               const State& state) {
  const std::string so = "the model is spread over ranks by tensor_parallel()";
  const int ranks = state.spread->tensor_group()->size() * state.spread->data_group()->size();
  TUTTI_CHECK_VALUE(ranks == state.world_size, so, ", over ", ranks, " ranks, and the run has ",
                    state.world_size, "; give it the group of all ranks");
  TUTTI_CHECK_VALUE(policies.empty(), so, ", which does not go with ", policies,
                    ". Remove the policy, or leave the model whole");
  for (const auto& optimizer : state.optimizers) {
    const auto* const stepping = dynamic_cast<const optim::FusedStepOptimizer*>(optimizer.get());
    const bool elementwise = (stepping == nullptr || stepping->elementwise()) &&
                             !optim::calls_closure(*optimizer) &&
                             dynamic_cast<const optim::KeepsAverages*>(optimizer.get()) == nullptr;
    TUTTI_CHECK_VALUE(elementwise, so, ", but the optimizer ", optim::class_name(*optimizer),
                      " looks at whole tensors, or puts others into the model, of which a rank has "
                      "parts; take one that is elementwise, as AdamW, Lion or SGD");
  }
  TUTTI_CHECK_VALUE(!state.auto_microbatching && !options.device_train_microbatch_size.automatic &&
                        !options.grad_accum.automatic,
                    so,
                    ", and the microbatch size is \"auto\", by which a rank finds out that it "
                    "has no memory left while others wait for its part; set a size");
  TUTTI_CHECK_VALUE(!options.restore_best, so,
                    ", and restore_best keeps whole weights; keep the best checkpoints with "
                    "CheckpointSaver");
}

}  // namespace tutti::train

#endif
