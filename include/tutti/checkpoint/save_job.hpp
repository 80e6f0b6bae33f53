// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/mirror.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

namespace detail {

// The id of the saver that wrote a checkpoint or a folder of weights; empty: none did.
inline std::string saver_id(const std::filesystem::path& path) {
  if (path_exists(path / "manifest.json") || !path_exists(path / "config.json")) {
    return read_manifest(path).meta.get_or("saver_id", std::string());
  }
  const Metadata metadata = read_folder_metadata(path);
  const auto found = metadata.find("saver_id");
  return found != metadata.end() ? found->second : std::string();
}

}  // namespace detail

/// Whether a path is a checkpoint that a saver of this id wrote: a folder, no link, with a whole
/// manifest that carries the id, or weights whose metadata do.
inline bool carries(const std::filesystem::path& path, const std::string& id) {
  try {
    std::error_code none;
    return !id.empty() &&
           std::filesystem::is_directory(std::filesystem::symlink_status(path, none)) &&
           detail::saver_id(path) == id;
  } catch (const c10::Error&) {
    return false;
  }
}

/// What Saver::adopt() takes: "1", then for each name of the loaded list whether it is the saver's
/// own, "1" or "0"; empty when the list is about another folder. Reads files: for rank 0.
/// from: the checkpoint that the list was in, when its list is about the folder that it is in.
inline std::string claim(const Saver& saver, const std::filesystem::path& from = {}) {
  const Saver::Loaded& list = saver.loaded();
  const Place here = place_of(saver.folder());
  const bool inside =
      !from.empty() &&
      place_of(std::filesystem::path(place_of(resolve(from)).path).parent_path()).is(here);
  if (list.id.empty() || !(inside || list.place.is(here))) {
    return {};
  }
  std::string own = "1";
  for (const std::string& name : list.names) {
    own += carries(std::filesystem::path(saver.folder()) / name, list.id) ? '1' : '0';
  }
  return own;
}

/// Refuses a target that is something else's and may not be replaced. Reads files: for rank 0.
inline void check_target(const Saver::Target& target) {
  TUTTI_CHECK(
      target.overwrite || !detail::path_exists(target.path) || carries(target.path, target.id),
      "checkpoint: '", target.path,
      "' is there already and is not this run's; move it, choose another save_folder or "
      "save_filename, or allow replacing it (save_overwrite)");
}

/// What follows when a target's checkpoint is on disk: points to it, tells the mirrors, removes
/// what it replaces.
inline void after_write(const Saver::Target& target, const std::vector<Mirror*>& mirrors) {
  if (!target.link.empty() && target.links_here) {
    point_latest(target.link, std::filesystem::path(target.path).filename().string());
  }
  for (Mirror* mirror : mirrors) {
    mirror->written(target.path, target.link);
  }
  for (const std::string& old : target.surplus) {
    if (carries(old, target.id)) {
      if (!target.link.empty() && !target.links_here && resolve(target.link) == old) {
        detail::remove_tree(target.link);  // brought back from a mirror with what goes now
      }
      remove_snapshot(old);
    }
  }
}

/// One checkpoint of a Saver on its way to the disk; refers to nothing but the tensors and who
/// makes copies.
struct SaveJob {
  Saver::Target target;
  SnapshotFiles files;
  std::vector<Mirror*> mirrors{};

  /// Writes, points, tells the mirrors, removes. Throws c10::Error when it cannot, or when
  /// something else has the checkpoint's name; older ones are then intact.
  void operator()() {
    check_target(target);
    files.manifest.meta.put("saver_id", target.id);
    write_files(target.path, files, /*overwrite=*/true);
    after_write(target, mirrors);
  }
};

}  // namespace tutti::checkpoint
