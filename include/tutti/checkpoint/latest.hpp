// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

namespace detail {

/// The batch of the run that a folder is a whole checkpoint of; nothing when it is none.
std::optional<std::int64_t> batch_of(const std::filesystem::path& folder);

/// The checkpoint that is furthest in its run.
std::optional<std::string> find_furthest(const std::filesystem::path& folder);

}  // namespace detail

/// The checkpoint of a whole run that the pointer `latest` of a folder names; where there is no
/// pointer, since the run died between its first checkpoint and pointing to it, the one that is
/// furthest in its run. Nothing when there is none.
///
/// A function of the two names and what is on disk alone.
/// Throws c10::Error when the pointer names a checkpoint that is not there, or is no pointer.
std::optional<std::string> find_latest(const std::filesystem::path& folder,
                                       const std::string& latest);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/latest.inl.hpp>
#endif
