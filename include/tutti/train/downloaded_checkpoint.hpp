// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/mirror.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>
#include <tutti/train/together.hpp>

namespace tutti::train {

/// `path` is an address, "s3://bucket/a", and no path.
inline bool is_address(std::string_view path) {
  return path.find("://") != std::string_view::npos;
}

/// A checkpoint from elsewhere in a temporary folder of each node, which is removed at the end of
/// its life.
class DownloadedCheckpoint {
 public:
  /// A collective; local rank 0 of every node downloads. Throws c10::Error on every rank when no
  /// mirror has that address or it cannot be brought.
  DownloadedCheckpoint(const std::string& uri, const std::vector<checkpoint::Mirror*>& mirrors,
                       dist::Communicator& world)
      : DownloadedCheckpoint(uri, mirrors, world, world.environment().local_rank == 0) {}

  [[nodiscard]] const std::string& folder() const { return checkpoint_.path(); }

 private:
  DownloadedCheckpoint(const std::string& uri, const std::vector<checkpoint::Mirror*>& mirrors,
                       dist::Communicator& world, bool first)
      : checkpoint_(world.broadcast_bytes(checkpoint::TemporaryCheckpoint::new_path()), first) {
    run_while_others_wait(world, first, [&] { fetch(uri, mirrors); });
  }

  void fetch(const std::string& uri, const std::vector<checkpoint::Mirror*>& mirrors) const {
    for (checkpoint::Mirror* mirror : mirrors) {
      if (mirror->fetch(uri, folder())) {
        return;
      }
    }
    TUTTI_CHECK_VALUE(false, "load_path is '", uri, "', but no policy of the recipe loads from ",
                      "there; add a tutti::RemoteUploader with that object store");
  }

  checkpoint::TemporaryCheckpoint checkpoint_;
};

}  // namespace tutti::train
