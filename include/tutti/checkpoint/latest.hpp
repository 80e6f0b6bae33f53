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

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::optional<std::int64_t> batch_of(const std::filesystem::path& folder) {
  try {
    const Manifest manifest = read_manifest(folder);
    const bool run = !manifest.meta.get_or("weights_only", false);
    return run ? std::optional(manifest.meta.get<std::int64_t>("batch")) : std::nullopt;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

TUTTI_INLINE std::optional<std::string> find_furthest(const std::filesystem::path& folder) {
  std::optional<std::string> found;
  std::int64_t furthest = -1;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with('.') || !is_folder(entry.path())) {
      continue;
    }
    const auto batch = batch_of(entry.path());
    if (batch && *batch > furthest) {
      furthest = *batch;
      found = entry.path().string();
    }
  }
  return found;
}

}  // namespace tutti::checkpoint::detail

namespace tutti::checkpoint {

TUTTI_INLINE std::optional<std::string> find_latest(const std::filesystem::path& folder,
                                                    const std::string& latest) {
  const auto link = folder / latest;
  if (!detail::path_exists(link)) {
    return detail::find_furthest(folder);
  }
  const auto found = resolve(link);
  constexpr const char* cure =
      "; point it to another checkpoint of the folder, or remove it to go on from the one that is "
      "furthest";
  TUTTI_CHECK(found != link || detail::is_folder(link), "checkpoint: '", link.string(),
              "' is no pointer to a checkpoint", cure);
  TUTTI_CHECK(detail::is_folder(found), "checkpoint: '", link.string(), "' points to '",
              found.string(), "', which is not there", cure);
  return found.string();
}

}  // namespace tutti::checkpoint

#endif
