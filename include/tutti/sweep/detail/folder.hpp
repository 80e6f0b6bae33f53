// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <tutti/core/detail/whole_file.hpp>

// The folder of a sweep.

namespace tutti::sweep::detail {

// A folder that is locked as long as this lives.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : fd_(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_ < 0 || ::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const std::string why =
          errno == EWOULDBLOCK ? "another tutti-sweep runs there" : std::string(::strerror(errno));
      ::close(fd_);
      throw std::runtime_error("the folder '" + folder + "' cannot be used: " + why);
    }
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() { ::close(fd_); }

 private:
  int fd_;
};

// Not std::filesystem::remove_all, which LibTorch's wheel exports a copy of that crashes.
inline void remove_folder(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(std::filesystem::symlink_status(path))) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      remove_folder(entry.path());
    }
  }
  std::filesystem::remove(path);
}

inline void write_or_throw(const std::string& path, const std::string& text) {
  const std::string problem = tutti::detail::write_whole_file(path, text, /*sync=*/true);
  if (!problem.empty()) {
    throw std::runtime_error("cannot write '" + path + "': " + problem);
  }
}

}  // namespace tutti::sweep::detail
