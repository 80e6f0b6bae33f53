// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/latest.hpp>

#include <algorithm>

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

TUTTI_INLINE std::optional<std::pair<std::int64_t, std::int64_t>> written_at(
    const std::filesystem::path& path) {
  struct stat facts{};
  if (::lstat(path.c_str(), &facts) != 0) {
    return std::nullopt;
  }
  return std::pair<std::int64_t, std::int64_t>(facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
}

TUTTI_INLINE std::optional<std::string> find_unpointed(const std::filesystem::path& link,
                                                       const std::filesystem::path& found) {
  namespace fs = std::filesystem;
  const auto pointed = written_at(link);
  std::vector<fs::path> younger;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(link.parent_path(), none)) {
    const fs::path& path = entry.path();
    if (!path.filename().string().starts_with('.') && path.filename() != found.filename() &&
        !entry.is_symlink(none) && written_at(path / "manifest.json") > pointed) {
      younger.push_back(path);
    }
  }
  const auto batch = younger.empty() ? std::nullopt : batch_of(found);
  if (!batch) {
    return std::nullopt;
  }
  std::optional<std::string> out;
  std::int64_t furthest = *batch;
  const Manifest before = read_manifest(found);
  const auto id = before.meta.get_or("saver_id", std::string());
  for (const fs::path& path : younger) {
    const auto at = batch_of(path);
    if (!at || *at <= furthest || id.empty()) {
      continue;
    }
    const Manifest manifest = read_manifest(path);
    const bool complete =
        std::all_of(manifest.files.begin(), manifest.files.end(), [&](const auto& file) {
          std::error_code error;
          return fs::file_size(path / file.first, error) == file.second.size && !error;
        });
    if (complete && manifest.created >= before.created &&
        manifest.meta.get_or("saver_id", std::string()) == id) {
      furthest = *at;
      out = path.string();
    }
  }
  return out;
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
  return detail::find_unpointed(link, found).value_or(found.string());
}

}  // namespace tutti::checkpoint
