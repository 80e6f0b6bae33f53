// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tutti/config.hpp>

// How this library opens a file to read it.

namespace tutti::detail {

/// A regular file that is open for reading; the caller closes the descriptor.
struct RegularFile {
  int descriptor = -1;     ///< -1: it could not be opened
  std::uint64_t size = 0;  ///< bytes
  std::string problem;     ///< why it could not be opened
};

/// Opens a regular file and never waits: whoever opens a named pipe waits for a writer, and a
/// device may have no end. All that is no regular file is refused.
RegularFile open_regular_file(const std::string& path);

/// The bytes of a regular file; none when it cannot be read or has more than `limit` bytes.
/// problem: receives the reason.
std::optional<std::string> read_regular_file(
    const std::string& path, std::string& problem,
    std::uint64_t limit = std::numeric_limits<std::uint64_t>::max());

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

// What a file is that is not regular.
TUTTI_INLINE const char* file_kind(unsigned mode) {
  return S_ISDIR(mode)    ? "a folder"
         : S_ISFIFO(mode) ? "a named pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

// Why a file could not be opened, with the folder of it that is not there.
TUTTI_INLINE std::string open_problem(const std::string& path, int reason) {
  std::string out = std::strerror(reason);
  const std::size_t slash = path.rfind('/');
  if (reason == ENOENT && slash != std::string::npos && slash > 0) {
    const std::string folder = path.substr(0, slash);
    struct stat facts{};
    if (::stat(folder.c_str(), &facts) != 0) {
      out += "; there is no folder '" + folder + "'";
    }
  }
  return out;
}

TUTTI_INLINE RegularFile open_regular_file(const std::string& path) {
  RegularFile out;
  do {
    out.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (out.descriptor < 0 && errno == EINTR);
  struct stat facts{};
  if (out.descriptor < 0 || ::fstat(out.descriptor, &facts) != 0) {
    out.problem = open_problem(path, errno);
  } else if (!S_ISREG(facts.st_mode)) {
    out.problem = std::string("it is ") + file_kind(facts.st_mode) + ", not a regular file";
  } else {
    out.size = static_cast<std::uint64_t>(facts.st_size);
    return out;
  }
  if (out.descriptor >= 0) {
    ::close(out.descriptor);
    out.descriptor = -1;
  }
  return out;
}

TUTTI_INLINE std::optional<std::string> read_regular_file(const std::string& path,
                                                          std::string& problem,
                                                          std::uint64_t limit) {
  const RegularFile file = open_regular_file(path);
  problem = file.problem;
  if (file.descriptor < 0) {
    return std::nullopt;
  }
  std::optional<std::string> text;
  if (file.size > limit) {
    problem =
        "it has " + std::to_string(file.size) + " bytes, expected at most " + std::to_string(limit);
  } else {
    text.emplace(file.size, '\0');
    std::size_t got = 0;
    ::ssize_t step = 1;
    while (got < text->size() && step != 0) {
      step = ::read(file.descriptor, text->data() + got, text->size() - got);
      if (step < 0 && errno != EINTR) {
        problem = std::strerror(errno);
        text.reset();
        break;
      }
      got += step > 0 ? static_cast<std::size_t>(step) : 0;
    }
    if (text) {
      text->resize(got);  // it became shorter meanwhile
    }
  }
  ::close(file.descriptor);
  return text;
}

}  // namespace tutti::detail

#endif
