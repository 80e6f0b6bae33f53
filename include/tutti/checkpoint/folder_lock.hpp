// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/checkpoint/detail/file.hpp>
#include <tutti/checkpoint/detail/staging.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// What FolderLock does where it may not make its file.
enum class CannotLock : std::uint8_t {
  fails,   ///< throws
  passes,  ///< holds nothing: whoever writes there will be told why it cannot
};

/// Keeps other trainers, of this process or another, from saving into a folder while it lives.
///
/// It is a flock() on the file `.tutti-lock`, which names the process and is gone with the lock.
/// The system gives the lock back when a process dies, so a file that is left behind is none.
class FolderLock {
 public:
  static constexpr const char* filename = ".tutti-lock";

  /// folder: is there. Warns on a file system without locks, and holds the folder by name alone.
  /// Throws c10::Error when another trainer holds it, with its process and host.
  explicit FolderLock(const std::filesystem::path& folder, CannotLock cannot = CannotLock::fails);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  /// False: it could not make its file.
  [[nodiscard]] bool held() const { return held_; }

 private:
  // What the file says of who holds it.
  struct Owner {
    long pid = 0;  // 0: it says nothing
    std::string host;
    std::string token;  // of the process, since a number comes again

    [[nodiscard]] std::string text() const {
      return std::to_string(pid) + ' ' + host + ' ' + token + '\n';
    }
    static Owner self();
    static Owner of(int fd);
    // Its process is gone; a child of it may hold the lock for a moment longer.
    [[nodiscard]] bool dead() const;
  };

  // Closed at the end of its life.
  struct Descriptor {
    int number = -1;

    explicit Descriptor(int opened) : number(opened) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
      if (number >= 0) {
        ::close(number);
      }
    }
  };

  // False: the file cannot be made, for the reason of errno.
  bool acquire(const std::filesystem::path& folder);
  static int open_file(const std::filesystem::path& folder);
  // Whether the folder still has that file: who held it before may have removed it.
  [[nodiscard]] bool names(int fd) const;
  [[noreturn]] static void refuse(const std::filesystem::path& folder, const Owner& owner);

  Descriptor folder_;    // stays that of the folder when it is renamed
  Descriptor file_{-1};  // -1: there are no locks
  bool held_ = false;
  pid_t pid_ = ::getpid();  // a child that has a copy of this holds nothing
};

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/folder_lock.inl.hpp>
#endif
