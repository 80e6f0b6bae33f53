// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/stat.h>

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

/// When a file, or a link itself, was written: seconds and nanoseconds; nothing when it is not
/// there.
std::optional<std::pair<std::int64_t, std::int64_t>> written_at(const std::filesystem::path& path);

/// The checkpoint beside `found`, to which `link` points, that the same run has written since: it
/// died before pointing to it. Nothing when there is none. Only manifests are read, and only of
/// what is younger than the pointer; files are there in the size that they tell.
std::optional<std::string> find_unpointed(const std::filesystem::path& link,
                                          const std::filesystem::path& found);

}  // namespace detail

/// The checkpoint of a whole run that the pointer `latest` of a folder names; where the run died
/// between a further checkpoint and pointing to it, that one, complete and of the same saver; where
/// there is no pointer, since that was the first, the one that is furthest in its run. Nothing when
/// there is none.
///
/// A function of the two names and what is on disk alone. A pointer that was set by hand is younger
/// than all that the run wrote, and counts.
/// Throws c10::Error when the pointer names a checkpoint that is not there, or is no pointer.
std::optional<std::string> find_latest(const std::filesystem::path& folder,
                                       const std::string& latest);

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/latest.inl.hpp>
#endif
