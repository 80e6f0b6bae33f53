// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <tutti/config.hpp>

namespace tutti::detail {

/// Writes a file whole or not at all, through `<path>.part`, which takes its name at the end.
/// sync: the bytes are on the disk before. Returns why not; empty: it is there.
std::string write_whole_file(const std::string& path, const std::string& bytes, bool sync = false);

/// The same of bytes that lie in several places.
std::string write_whole_file(const std::string& path, const std::vector<std::string_view>& pieces,
                             bool sync = false);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string write_whole_file(const std::string& path, const std::string& bytes,
                                          bool sync) {
  return write_whole_file(path, std::vector<std::string_view>{bytes}, sync);
}

TUTTI_INLINE std::string write_whole_file(const std::string& path,
                                          const std::vector<std::string_view>& pieces, bool sync) {
  const std::string part = path + ".part";
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  bool good = fd >= 0;
  int reason = errno;
  for (const std::string_view bytes : pieces) {
    for (std::size_t done = 0; good && done < bytes.size();) {
      const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
      reason = errno;
      good = put > 0 || (put < 0 && reason == EINTR);
      done += put > 0 ? static_cast<std::size_t>(put) : 0;
    }
  }
  if (good && sync && ::fsync(fd) != 0) {
    reason = errno;
    good = false;
  }
  if (fd >= 0) {
    const bool closed = ::close(fd) == 0;
    reason = good && !closed ? errno : reason;
    good = good && closed;
  }
  if (good && std::rename(part.c_str(), path.c_str()) == 0) {
    return {};
  }
  reason = good ? errno : reason;
  ::unlink(part.c_str());
  return std::strerror(reason);
}

}  // namespace tutti::detail

#endif
