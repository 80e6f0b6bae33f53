#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/mirror.hpp>
#include <tutti/checkpoint/saver.hpp>
#include <tutti/checkpoint/snapshot.hpp>

namespace tutti::checkpoint {

/// One checkpoint of a Saver on its way to the disk; refers to nothing but the tensors and who
/// makes copies.
struct SaveJob {
  Saver::Target target;
  Pages pages;
  std::vector<Mirror*> mirrors{};

  /// Writes, points, tells the mirrors, removes. Throws c10::Error when it cannot; older ones are
  /// then intact.
  void operator()() const {
    write_pages(target.path, pages, /*overwrite=*/true);
    if (!target.link.empty()) {
      point_latest(target.link, std::filesystem::path(target.path).filename().string());
    }
    for (Mirror* mirror : mirrors) {
      mirror->written(target.path, target.link);
    }
    for (const std::string& old : target.surplus) {
      remove_snapshot(old);
    }
  }
};

}  // namespace tutti::checkpoint
