// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/folder_lock.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE FolderLock::Owner FolderLock::Owner::self() {
  static const std::string token = detail::random_suffix();
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return {.pid = ::getpid(), .host = host, .token = token};
}

TUTTI_INLINE FolderLock::Owner FolderLock::Owner::of(int fd) {
  char text[512] = {};
  const ssize_t got = ::pread(fd, text, sizeof text, 0);
  const std::string line(text, got < 0 ? 0 : static_cast<std::size_t>(got));
  const std::size_t first = line.find(' ');
  const std::size_t second = line.find(' ', first == std::string::npos ? first : first + 1);
  const std::size_t end = line.find('\n');
  if (second == std::string::npos || end == std::string::npos || end < second) {
    return {};
  }
  return {.pid = std::atol(line.c_str()),
          .host = line.substr(first + 1, second - first - 1),
          .token = line.substr(second + 1, end - second - 1)};
}

TUTTI_INLINE bool FolderLock::Owner::dead() const {
  return pid > 0 && host == self().host && ::kill(static_cast<pid_t>(pid), 0) != 0 &&
         errno == ESRCH;
}

TUTTI_INLINE int FolderLock::open_file(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / filename;
  const int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int fd = ::open(path.c_str(), flags | O_RDWR | O_CREAT, 0666);
  if (fd >= 0 || errno != EACCES) {
    return fd;
  }
  const int theirs = ::open(path.c_str(), flags | O_RDONLY);  // another user left it
  errno = EACCES;
  return theirs;
}

TUTTI_INLINE bool FolderLock::names(int fd) const {
  struct stat held{};
  struct stat there{};
  return ::fstat(fd, &held) == 0 &&
         ::fstatat(folder_.number, filename, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

TUTTI_INLINE void FolderLock::refuse(const std::filesystem::path& folder, const Owner& owner) {
  const Owner self = Owner::self();
  TUTTI_CHECK(owner.pid != self.pid || owner.token != self.token,
              "checkpoint: another trainer of this process saves into the folder '",
              folder.string(),
              "'; end its fit() or close() it first, or choose another save_folder");
  const std::string process = "process " + std::to_string(owner.pid) + " on host '" + owner.host +
                              "'" + (owner.dead() ? ", or a child that outlives it," : "");
  TUTTI_CHECK(false, "checkpoint: ", owner.pid == 0 ? "another process" : process,
              " saves into the folder '", folder.string(),
              "'; wait until it has ended, or choose another save_folder or run_name; only to "
              "load from it, set load_path and no save_folder");
}

TUTTI_INLINE bool FolderLock::acquire(const std::filesystem::path& folder) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (true) {
    Descriptor file(open_file(folder));
    if (file.number < 0) {
      return false;
    }
    if (::flock(file.number, LOCK_EX | LOCK_NB) == 0) {
      if (names(file.number)) {
        std::swap(file_.number, file.number);
        return true;
      }
    } else if (errno == EWOULDBLOCK) {
      const Owner owner = Owner::of(file.number);
      if ((owner.pid != 0 && !owner.dead()) || std::chrono::steady_clock::now() > until) {
        refuse(folder, owner);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } else {
      TORCH_WARN("checkpoint: the file system of '", folder.string(),
                 "' has no locks, so nothing keeps another process from saving there, too; see to "
                 "it that none does");
      ::unlinkat(folder_.number, filename, 0);
      return true;
    }
  }
}

TUTTI_INLINE FolderLock::FolderLock(const std::filesystem::path& folder, CannotLock cannot)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  held_ = folder_.number >= 0 && acquire(folder);
  if (!held_ && cannot == CannotLock::fails) {
    detail::fail_with_errno("lock", folder / filename);
  }
  if (file_.number >= 0) {
    const std::string text = Owner::self().text();
    const bool cleared = ::ftruncate(file_.number, 0) == 0;
    if (!cleared || ::pwrite(file_.number, text.data(), text.size(), 0) < 0) {
      return;  // where the disk is full, say, it holds without a name
    }
  }
}

TUTTI_INLINE FolderLock::~FolderLock() {
  if (file_.number < 0 || pid_ != ::getpid()) {
    return;
  }
  if (names(file_.number)) {
    ::unlinkat(folder_.number, filename, 0);  // still locked, so that it is nobody else's
  }
  ::flock(file_.number, LOCK_UN);  // children may have the descriptor, too
}

}  // namespace tutti::checkpoint
