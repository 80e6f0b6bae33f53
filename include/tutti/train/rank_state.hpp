// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>

#include <tutti/checkpoint/rng_state.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/train/policy_states.hpp>

/// What differs between the ranks of a run, all of it random streams: every rank's goes into the
/// checkpoint that rank 0 writes.
namespace tutti::train {

namespace detail {

// Leaves of one rank as text that travels: path, size, bytes.
std::string pack(const Archive& archive);

void unpack(const std::string& text, Archive& archive);

}  // namespace detail

/// Saves the random streams of this rank.
void save_rank_state(const PolicyStates& policies, Archive& archive);

/// Collects the random streams of every rank: LibTorch's generators and the policies' own.
void save_rank_states(const PolicyStates& policies, dist::Communicator& world, Archive& archive);

/// Puts the policies' streams of this rank back at once. A rank that the saved run did not have
/// keeps its own.
/// Returns what restores LibTorch's generators, to be called just before the next batch.
std::function<void()> load_rank_state(const PolicyStates& policies, const State& state,
                                      const Archive& archive);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/rank_state.inl.hpp>
#endif
