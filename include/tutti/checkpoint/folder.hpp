// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/checkpoint/filename.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// Makes a folder and its missing parents; durable on return. Throws c10::Error when it cannot.
void make_folder(const std::filesystem::path& folder);

/// Lets `link` name a checkpoint beside it, atomically: a relative symbolic link, or where the file
/// system has none, a file of one line.
///
/// link: such as "run/checkpoints/latest". name: the checkpoint's name in the same folder.
/// Throws c10::Error when it cannot be written, or `link` is a folder or a file that is no pointer.
void point_latest(const std::filesystem::path& link, const std::string& name);

/// The checkpoint that a path means: itself, or what it points to when point_latest() made it, or
/// the old one while a writer that died had set it aside to replace it. links: how many pointers it
/// follows at most, for they may go round.
/// Throws c10::Error when a file that is a pointer names something that is not beside it.
std::filesystem::path resolve(const std::filesystem::path& path, int links = 40);

/// What tells a folder from others, for a run that comes back to it.
struct Place {
  std::string path;   ///< absolute, links followed; also of a folder that is yet to be made
  std::string inode;  ///< "device:number"; empty: it is not there

  /// The folder is there at the same path, or was moved on the same file system.
  [[nodiscard]] bool is(const Place& other) const {
    return (!path.empty() && path == other.path) || (!inode.empty() && inode == other.inode);
  }
};

/// The place of a folder.
Place place_of(const std::filesystem::path& folder);

/// Removes a checkpoint; a reader sees it whole or not at all. Does nothing when there is none.
void remove_snapshot(const std::filesystem::path& path);

/// A checkpoint that is needed for a while, in TMPDIR or else in /tmp: a new name of which nothing
/// is left at the end of its life.
class TemporaryCheckpoint {
 public:
  /// path: from new_path(). owned: it is this object that removes it.
  explicit TemporaryCheckpoint(std::string path, bool owned = true)
      : path_(std::move(path)), owned_(owned) {}
  TemporaryCheckpoint(const TemporaryCheckpoint&) = delete;
  TemporaryCheckpoint& operator=(const TemporaryCheckpoint&) = delete;
  ~TemporaryCheckpoint();

  static std::string new_path() {
    const char* folder = std::getenv("TMPDIR");
    return std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") + "/tutti-fetched" +
           detail::random_suffix();
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The folder that it is in.
  [[nodiscard]] std::string place() const { return path_.substr(0, path_.rfind('/')); }

 private:
  std::string path_;
  bool owned_;
};

namespace detail {

/// What to do with a folder of PyTorch's or Composer's that has .distcp files, as the end of a
/// sentence about it; empty: it has none.
std::string pickled_shards(const std::filesystem::path& folder);

}  // namespace detail

/// What `work` returns, which reads in `folder` what was brought from `address`. An error of its
/// names the address in the folder's place, which is gone when somebody reads it.
template <class F>
decltype(auto) speaking_of(const std::string& address, const std::string& folder, F&& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    std::size_t found = text.find(folder);
    if (found == std::string::npos || address == folder) {
      throw;
    }
    for (; found != std::string::npos; found = text.find(folder, found + address.size())) {
      text.replace(found, folder.size(), address);
    }
    ::tutti::detail::raise<c10::Error>({__func__, __FILE__, __LINE__}, text);
  }
}

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/folder.inl.hpp>
#endif
