// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/StringUtil.h>

#include <tutti/checkpoint/optimizer_state.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/spread_model.hpp>
#include <tutti/train/detail/optimizer_parts.hpp>
#include <tutti/train/detail/sharding_support.hpp>
#include <tutti/train/load_report.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/timestamp_state.hpp>

/// What a checkpoint keeps of a run beside weights, policies and random streams.
namespace tutti::train {

namespace detail {

std::vector<double> learning_rates(const State& state);

// Those that a schedule multiplies, or would.
inline std::vector<double> base_learning_rates(const State& state) {
  return state.initial_lrs.empty() ? learning_rates(state) : state.initial_lrs;
}

std::string listed(const std::vector<double>& values);

}  // namespace detail

/// What a schedule makes of epochs that have had another number of batches than they have now;
/// nothing where that makes no difference.
std::string other_epochs(const State& state, const Run& run);

/// Saves optimizers, schedule, time, seed, scaler, the saver's list and, when wanted, metrics; a
/// collective. saver: null when there is none. parts: set, of a sharded optimizer this rank's parts
/// alone, whose paths, behind "state/", it then lists; null: whole.
void save_run(const State& state, const Run& run, const checkpoint::Saver* saver, Archive& archive,
              bool metrics, checkpoint::PartPlaces* parts = nullptr);

/// Restores what save_run() saved. What the archive lacks starts afresh, which the report says.
/// parts: the archive has this rank's rows of what optimizers keep of their parameters, which they
/// get when the run has been sharded, by run.load_parts.
/// Throws c10::Error when an optimizer does not fit, saying what differs and what to do.
void load_run(State& state, Run& run, checkpoint::Saver* saver, const Archive& archive,
              RunLoadReport& report, bool parts = false);

}  // namespace tutti::train

#if TUTTI_BODIES
#include <tutti/train/run_state.inl.hpp>
#endif
