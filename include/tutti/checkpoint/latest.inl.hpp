// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/latest.hpp>

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
