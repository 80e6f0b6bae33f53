// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/memory_plan.hpp>

namespace tutti::detail {

// Bytes of the tensors with elements; counters of steps do not grow with the model.
TUTTI_INLINE std::int64_t tensor_bytes(const Archive& archive) {
  std::int64_t bytes = 0;
  archive.each_leaf([&](const std::string&, const ArchiveLeaf& leaf) {
    const at::Tensor* const tensor = leaf.tensor();
    bytes +=
        tensor != nullptr && tensor->dim() > 0 ? static_cast<std::int64_t>(tensor->nbytes()) : 0;
  });
  return bytes;
}

TUTTI_INLINE std::vector<dist::MemoryPlan> memory_plans(const State& state, int world_size,
                                                        dist::MemoryPlanOptions options) {
  TUTTI_CHECK_VALUE(
      state.sharding == nullptr,
      "memory_plan: the model is sharded, so that its sizes on one rank are not those "
      "of the whole; plan in one process, or with sharding.stage = "
      "ShardStage::none: the plan has all stages");
  std::int64_t bytes = 0;
  std::int64_t elements = 0;
  for (const auto& optimizer : state.optimizers) {
    Archive archive;
    checkpoint::save_optimizer(*optimizer, archive);
    bytes += tensor_bytes(archive);
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        elements += parameter.numel();
      }
    }
  }
  if (bytes > 0 && elements > 0) {
    options.optimizer_bytes = static_cast<double>(bytes) / static_cast<double>(elements);
  }
  options.world_size = world_size;
  std::vector<dist::MemoryPlan> plans;
  for (const dist::ShardStage stage : {dist::ShardStage::none, dist::ShardStage::optimizer,
                                       dist::ShardStage::gradients, dist::ShardStage::parameters}) {
    options.sharding.stage = stage;
    plans.push_back(dist::memory_plan(*state.model, options));
  }
  return plans;
}

}  // namespace tutti::detail
