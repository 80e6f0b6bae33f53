// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/filename.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti {

/// The file or folder that `pattern` names in this run, as it is now: its placeholders filled in.
/// See checkpoint::format_name for those that there are.
inline std::string run_path(std::string_view pattern, const State& state) {
  checkpoint::NameFields fields{.run_name = state.run_name,
                                .run_folder = state.run_folder,
                                .rank = state.rank,
                                .world_size = state.world_size,
                                .local_world_size = state.world_size,
                                .timestamp = state.timestamp};
  if (state.communicator) {
    const dist::Environment& here = state.communicator->environment();
    fields.local_rank = here.local_rank;
    fields.local_world_size = here.local_world_size;
    fields.node_rank = here.node_rank;
  }
  return checkpoint::format_name(pattern, fields);
}

namespace detail {

// Throws c10::ValueError when several ranks would write one file. field: "FileLogger: filename".
inline void check_one_file_per_rank(std::string_view field, std::string_view pattern,
                                    const State& state) {
  TUTTI_CHECK_VALUE(state.world_size == 1 || pattern.find("{rank}") != std::string_view::npos,
                    field, " is \"", pattern, "\", but ", state.world_size,
                    " ranks write; put {rank} into it");
}

// The same for names in a store, which are checked where there is one.
inline void check_remote_file(std::string_view who, std::string_view pattern, const State& state) {
  if (!pattern.empty() && state.logger.has_file_upload_destination()) {
    check_one_file_per_rank(std::string(who) + ": remote_file_name", pattern, state);
  }
}

// Sends a file to where the run's files are kept. pattern: its name there; empty: it stays here.
inline void upload_file(std::string_view pattern, std::string_view path, const State& state) {
  if (!pattern.empty() && state.logger.has_file_upload_destination()) {
    state.logger.upload_file(run_path(pattern, state), path);
  }
}

// For close(State&): it was called because of an exception.
inline bool run_failed() {
  return std::current_exception() != nullptr || std::uncaught_exceptions() > 0;
}

}  // namespace detail

}  // namespace tutti
