// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>

/// One rank per node works first, the others find what it left: a downloaded data set, a built
/// cache.

namespace tutti::dist {

namespace detail {

/// Waits until `path` exists and returns what was written to it.
std::string wait_for_file(const std::string& path);

/// Writes `text` to `path`; it appears whole or not at all. Returns whether that worked.
bool signal_by_file(const std::string& path, const std::string& text);

/// The same name on all ranks, a new one every time.
std::string signal_file(Communicator& group, const std::string& folder);

}  // namespace detail

/// Runs `body` on local rank 0 of every node and then on the others.
///
/// The others wait in a collective, so for no longer than the group's timeout. Throws what `body`
/// threw on local rank 0, and c10::Error on the ranks that waited for it.
void run_local_rank_zero_first(Communicator& group, const std::function<void()>& body);

/// The same for work that may last longer than the group's timeout: the others of a node wait for a
/// file, as long as it takes. Afterwards all ranks meet in a barrier.
///
/// folder: writable, seen by all ranks of a node under the same name; the file is removed again.
void run_local_rank_zero_first_patiently(Communicator& group, const std::function<void()>& body,
                                         const std::string& folder = ".");

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/local_rank_zero.inl.hpp>
#endif
