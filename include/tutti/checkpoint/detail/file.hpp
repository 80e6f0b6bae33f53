// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/regular_file.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint::detail {

/// "what 'path': reason of errno".
[[noreturn]] void fail_with_errno(const char* what, const std::filesystem::path& path);

/// An open file, closed at the end of its life. All calls resume after a signal and throw
/// c10::Error that names the path and the system's reason.
class File {
 public:
  /// Refuses what is no regular file, and does not wait for the writer of a named pipe.
  static File open_for_reading(std::filesystem::path path);
  /// A new file: one that is there already is an error.
  static File create(std::filesystem::path path) {
    return File(std::move(path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, "create");
  }
  /// A folder, for sync().
  static File open_folder(std::filesystem::path path) {
    return File(std::move(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC, "open");
  }

  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }

  const std::filesystem::path& path() const { return path_; }

  /// What the system knows the open file by.
  int descriptor() const { return fd_; }

  /// Size in bytes.
  std::uint64_t size() const;

  /// Fills `data` with the `size` bytes that begin at `offset`; fewer are an error.
  void read_at(std::uint64_t offset, void* data, std::size_t size) const;

  /// Appends `size` bytes.
  void write(const void* data, std::size_t size);

  /// Returns when all that was written has reached the device.
  void sync();

  /// What lock() found.
  enum class Lock { acquired, held_by_another, unsupported };

  /// Locks against other processes until this is closed or its process ends; does not wait.
  Lock lock() const;

  /// Seconds since something in it was changed.
  double age() const;

  /// Closes now, so that an error which the system reports only then is not lost.
  void close() {
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
      fail_with_errno("close", path_);
    }
  }

 private:
  static constexpr std::size_t max_call = std::size_t{1} << 30;  // Linux moves at most 2 GiB a call

  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), fd_(descriptor) {}
  File(std::filesystem::path path, int flags, const char* what);

  std::filesystem::path path_;
  int fd_ = -1;
};

/// Makes the names in a folder durable.
inline void sync_folder(const std::filesystem::path& folder) {
  File::open_folder(folder.empty() ? "." : folder).sync();
}

/// Removes a file, a link, or a folder with all that is in it; what is not there is no error.
///
/// Not std::filesystem::remove_all: LibTorch's wheel exports its own copy of that function, which a
/// program then calls instead of the standard library's, and which crashes.
void remove_tree(const std::filesystem::path& path);

/// Whether a path names something, be it a link that leads nowhere. Throws when that cannot be
/// told.
bool path_exists(const std::filesystem::path& path);

/// Whether a path is a folder or a link to one. Throws when that cannot be told.
bool is_folder(const std::filesystem::path& path);

/// Renames atomically; what bore the new name is replaced when the system can do that.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace tutti::checkpoint::detail

#if TUTTI_BODIES

namespace tutti::checkpoint::detail {

TUTTI_INLINE void fail_with_errno(const char* what, const std::filesystem::path& path) {
  const int reason = errno;
  TUTTI_CHECK(false, "checkpoint: cannot ", what, " '", path.string(),
              "': ", std::strerror(reason));
}

TUTTI_INLINE File File::open_for_reading(std::filesystem::path path) {
  const auto file = tutti::detail::open_regular_file(path.string());
  TUTTI_CHECK(file.descriptor >= 0, "checkpoint: cannot open '", path.string(),
              "': ", file.problem);
  return File(std::move(path), file.descriptor);
}

TUTTI_INLINE std::uint64_t File::size() const {
  struct stat facts{};
  if (::fstat(fd_, &facts) != 0) {
    fail_with_errno("inspect", path_);
  }
  return static_cast<std::uint64_t>(facts.st_size);
}

TUTTI_INLINE void File::read_at(std::uint64_t offset, void* data, std::size_t size) const {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got =
        ::pread(fd_, at, size < max_call ? size : max_call, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail_with_errno("read", path_);
    }
    TUTTI_CHECK(got > 0, "checkpoint: '", path_.string(), "' ends at byte ", offset, ", ", size,
                " bytes before the end of what it announces; the file is truncated");
    at += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

TUTTI_INLINE void File::write(const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = ::write(fd_, at, size < max_call ? size : max_call);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      fail_with_errno("write", path_);
    }
    at += put;
    size -= static_cast<std::size_t>(put);
  }
}

TUTTI_INLINE void File::sync() {
  while (::fsync(fd_) != 0) {
    if (errno == EINTR) {
      continue;
    }
    if (errno == EINVAL || errno == ENOTSUP) {
      return;  // some network and FUSE file systems know no fsync of a folder
    }
    fail_with_errno("fsync", path_);
  }
}

TUTTI_INLINE File::Lock File::lock() const {
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    return Lock::acquired;
  }
  return errno == EWOULDBLOCK ? Lock::held_by_another : Lock::unsupported;
}

TUTTI_INLINE double File::age() const {
  struct stat facts{};
  if (::fstat(fd_, &facts) != 0) {
    fail_with_errno("inspect", path_);
  }
  return std::difftime(std::time(nullptr), facts.st_mtime);
}

TUTTI_INLINE File::File(std::filesystem::path path, int flags, const char* what)
    : path_(std::move(path)) {
  do {
    fd_ = ::open(path_.c_str(), flags, 0666);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) {
    fail_with_errno(what, path_);
  }
}

TUTTI_INLINE void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(std::filesystem::symlink_status(path, error))) {
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      remove_tree(entry.path());
    }
  }
  if (::remove(path.c_str()) != 0 && errno != ENOENT) {
    fail_with_errno("remove", path);
  }
}

TUTTI_INLINE bool path_exists(const std::filesystem::path& path) {
  struct stat facts{};
  if (::lstat(path.c_str(), &facts) == 0) {
    return true;
  }
  if (errno != ENOENT && errno != ENOTDIR) {
    fail_with_errno("inspect", path);
  }
  return false;
}

TUTTI_INLINE bool is_folder(const std::filesystem::path& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) == 0) {
    return S_ISDIR(facts.st_mode);
  }
  if (errno != ENOENT && errno != ENOTDIR) {
    fail_with_errno("inspect", path);
  }
  return false;
}

TUTTI_INLINE void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    TUTTI_CHECK(false, "checkpoint: cannot rename '", from.string(), "' to '", to.string(),
                "': ", std::strerror(reason));
  }
}

}  // namespace tutti::checkpoint::detail

#endif
