// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/detail/module_state.hpp>

#include <torch/nn/module.h>

/// Ranks that are to start from one model.
namespace tutti::dist {

/// Checks that all ranks have the same model and options, and sends rank 0's parameters and buffers
/// to all; a collective. options: what they are, a line each. who: speaks. Throws c10::Error on
/// every rank, saying which one differs and where.
void start_alike(const torch::nn::Module& model, const std::string& options, Communicator& world,
                 const std::string& who);

}  // namespace tutti::dist

#if TUTTI_BODIES

namespace tutti::dist {

TUTTI_INLINE void start_alike(const torch::nn::Module& model, const std::string& options,
                              Communicator& world, const std::string& who) {
  detail::check_has_memory(model, who);
  const detail::ModuleState state = detail::state_of(model);
  const std::string mine = options + state.description;
  const std::string reference = world.broadcast_bytes(mine, 0);
  const auto differences = world.all_gather_bytes(detail::first_difference(mine, reference));
  for (std::size_t rank = 0; rank < differences.size(); ++rank) {
    TUTTI_CHECK(differences[rank].empty(), who, ": rank ", rank, " ", differences[rank],
                "; build the same model, with the same options, on every rank");
  }
  world.broadcast(state.everything(), 0);
}

}  // namespace tutti::dist

#endif
