// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/train/evaluation.hpp>

namespace tutti::train {

TUTTI_INLINE bool predicts_on(const State& state, bool has_batch, bool had_batch) {
  if (!meets_in_forward(state)) {
    return has_batch;
  }
  std::array<std::int64_t, 2> ranks{has_batch ? 1 : 0, has_batch || had_batch ? 0 : 1};
  state.communicator->all_reduce(std::span<std::int64_t>(ranks), dist::ReduceOp::sum);
  TUTTI_CHECK_VALUE(ranks[0] == 0 || ranks[1] == 0, "predict: the loaders of ", ranks[1], " of ",
                    state.world_size,
                    " ranks gave no batch, and with ShardStage::parameters all ranks run each "
                    "forward pass together; give each rank one batch or more");
  return ranks[0] > 0;
}

TUTTI_INLINE Outputs joined(const std::vector<Outputs>& batches) {
  TUTTI_CHECK_VALUE(!batches.empty(),
                    "predict_tensors: the loader gave no batch, so there is nothing to join");
  Outputs all;
  for (const auto& [name, first] : batches.front()) {
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      TUTTI_CHECK_VALUE(batches[i].contains(name) && batches[i].size() == batches.front().size(),
                        "predict_tensors: batch ", i, " has outputs called ", batches[i].names(),
                        ", batch 0 has ", batches.front().names(),
                        "; call predict(), which keeps batches apart");
      const at::Tensor& part = batches[i].at(name);
      TUTTI_CHECK_VALUE(part.dim() == first.dim() &&
                            (part.dim() == 0 || part.sizes().slice(1) == first.sizes().slice(1)),
                        "predict_tensors: the output \"", name, "\" of batch ", i, " is ",
                        part.sizes(), ", that of batch 0 ", first.sizes(),
                        ", so they are no rows of one tensor; call predict(), which keeps batches "
                        "apart, or let the loader make all examples equally large");
      parts.push_back(part.dim() == 0 ? part.reshape({1}) : part);
    }
    all[name] = at::cat(parts);
  }
  return all;
}

}  // namespace tutti::train
