// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/spread_model.hpp>

/// Which ranks read which examples, also where the model is spread over some of them.
namespace tutti::train::detail {

/// The ranks that read different examples; all of them where the model is not spread.
inline const std::shared_ptr<dist::Communicator>& data_group(const State& state) {
  return state.spread != nullptr ? state.spread->data_group() : state.communicator;
}

/// This rank among these.
inline int data_rank(const State& state) {
  return state.spread != nullptr ? state.spread->data_group()->rank() : state.rank;
}

/// How many these are.
inline int data_ranks(const State& state) {
  return state.spread != nullptr ? state.spread->data_group()->size() : state.world_size;
}

}  // namespace tutti::train::detail
