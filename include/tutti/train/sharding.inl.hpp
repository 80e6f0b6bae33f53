// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/sharding.hpp>

namespace tutti::train {

TUTTI_INLINE std::string autocast_notice(const dist::ShardingOptions& options,
                                         Precision precision) {
  const bool casts = precision == Precision::amp_bf16 || precision == Precision::amp_fp16;
  if (!casts || options.stage != dist::ShardStage::parameters || options.param_dtype) {
    return {};
  }
  return "sharding.stage is parameters and precision is " + std::string(to_string(precision)) +
         ", but sharding.param_dtype is not set: every rank keeps the copies that autocast makes "
         "of all weights, 2 bytes for each, from the forward to the backward pass, which is what "
         "sharding is to save; set sharding.param_dtype to " +
         (precision == Precision::amp_bf16 ? "at::kBFloat16" : "at::kHalf") +
         " and sharding.reduce_dtype to at::kFloat";
}

TUTTI_INLINE void warn_of_autocast(const dist::ShardingOptions& options, const State& state) {
  if (const std::string notice = autocast_notice(options, state.precision);
      !notice.empty() && state.rank == 0) {
    TORCH_WARN(notice);
  }
}

TUTTI_INLINE std::shared_ptr<tutti::detail::InitTape> put_off(torch::nn::Module& model,
                                                              const dist::ShardingOptions& options,
                                                              const State& state) {
  const std::vector<at::Tensor> tensors = tutti::detail::tensors_without_memory(model);
  if (!tensors.empty() && options.stage == dist::ShardStage::parameters &&
      is_sharded(options, dist::data_ranks(state))) {
    return tutti::detail::InitTape::of(tensors.front());
  }
  tutti::detail::materialize(model);
  return nullptr;
}

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
  TUTTI_CHECK_VALUE(options.data_parallel.compression == dist::GradientCompression::none, stage,
                    ", and data_parallel.compression is ",
                    to_string(options.data_parallel.compression),
                    ", which is of whole gradients; set sharding.reduce_dtype to at::kBFloat16 or "
                    "at::kHalf, which halves what is sent of float32");
  TUTTI_CHECK_VALUE(
      !state.auto_microbatching || sharding.stage != dist::ShardStage::parameters, stage,
      ", and the microbatch size is \"auto\", by which a rank finds out that it has no memory left "
      "while the others wait for its parameters; set a size, or take ShardStage::gradients");
  sharding.reduce_at_end = sharding.reduce_at_end || state.auto_microbatching;
  TUTTI_CHECK(sharding_support().shard != nullptr, stage,
              ", but the program cannot shard; add #include <tutti/train/sharded.hpp> to the file "
              "that makes the Trainer");
  auto out = sharding_support().shard(sharding, state);
  warn_of_autocast(sharding, state);
  return out;
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
