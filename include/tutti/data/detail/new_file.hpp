// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tutti/core/detail/throw.hpp>

// Files that appear whole or not at all.

namespace tutti::data::detail {

inline bool file_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

// Makes a folder and those above it.
inline void make_folders(const std::string& path) {
  for (std::size_t at = 0; at < path.size();) {
    at = path.find('/', at + 1);
    at = at == std::string::npos ? path.size() : at;
    const std::string part = path.substr(0, at);
    struct stat about{};
    TUTTI_CHECK(::mkdir(part.c_str(), 0777) == 0 || errno == EEXIST || errno == EROFS ||
                    (::stat(part.c_str(), &about) == 0 && S_ISDIR(about.st_mode)),
                "the folder '", part, "' cannot be made: ", std::strerror(errno));
  }
}

// What has been written is on the disk.
inline void sync_path(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool done = file >= 0 && ::fsync(file) == 0;
  const int reason = errno;
  if (file >= 0) {
    ::close(file);
  }
  TUTTI_CHECK(done, "'", path, "' cannot be written out: ", std::strerror(reason));
}

// Gives a whole file its name.
inline void publish_file(const std::string& temporary, const std::string& path) {
  sync_path(temporary);
  TUTTI_CHECK(::rename(temporary.c_str(), path.c_str()) == 0, "'", temporary,
              "' cannot be renamed to '", path, "': ", std::strerror(errno));
  sync_path(path.substr(0, path.rfind('/') + 1));
}

inline void write_whole(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  TUTTI_CHECK(file >= 0, "'", path, "' cannot be made: ", std::strerror(errno));
  while (!bytes.empty()) {
    const ::ssize_t got = ::write(file, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      const int reason = errno;
      ::close(file);
      ::unlink(path.c_str());
      TUTTI_CHECK(false, "'", path, "' cannot be written: ", std::strerror(reason));
    }
    bytes.remove_prefix(static_cast<std::size_t>(got));
  }
  ::close(file);
}

// Replaces what has that name.
inline void write_new_file(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp";
  write_whole(temporary, bytes);
  publish_file(temporary, path);
}

}  // namespace tutti::data::detail
