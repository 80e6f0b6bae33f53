// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tutti/core/detail/regular_file.hpp>

/// Kernels that were compiled once, on the disk.
namespace tutti::detail {

/// Where they are kept: $XDG_CACHE_HOME/tutti/kernels, else ~/.cache/tutti/kernels; empty, which is
/// nowhere, without a home.
inline std::string kernel_folder() {
  const auto absolute = [](const char* name) {
    const char* path = std::getenv(name);
    return path != nullptr && *path == '/' ? std::string(path) : std::string();
  };
  const std::string cache = absolute("XDG_CACHE_HOME");
  const std::string home = absolute("HOME");
  return !cache.empty() ? cache + "/tutti/kernels"
         : home.empty() ? ""
                        : home + "/.cache/tutti/kernels";
}

/// FNV-1a.
constexpr std::uint64_t hash(std::string_view text) {
  std::uint64_t out = 0xcbf29ce484222325;
  for (const char c : text) {
    out = (out ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return out;
}

inline std::string hexadecimal(std::uint64_t value) {
  std::string out;
  for (int shift = 60; shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[value >> shift & 15U];
  }
  return out;
}

// A file as a whole or not at all, and its folder where that is missing. Whether it could be.
inline bool write_bytes(const std::string& path, std::string_view bytes) {
  for (std::size_t at = path.find('/', 1); at != path.npos; at = path.find('/', at + 1)) {
    ::mkdir(path.substr(0, at).c_str(), 0700);
  }
  std::string temporary = path + ".XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) {
    return false;
  }
  std::FILE* file = ::fdopen(descriptor, "wb");
  const bool written =
      file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const bool closed = (file != nullptr ? std::fclose(file) : ::close(descriptor)) == 0;
  const bool done = written && closed && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (!done) {
    ::unlink(temporary.c_str());
  }
  return done;
}

/// What build() returns, or returned when it was last asked for with this key.
///
/// folder: where that is kept, a file for each key; empty: nowhere. key: a text without zeros that
/// names all that the result depends on; it is compared as a whole. A damaged file is replaced; a
/// folder that cannot be written is no error. Processes may do this at the same time.
template <class Build>
std::string kept(const std::string& folder, std::string_view key, const Build& build) {
  if (folder.empty()) {
    return build();
  }
  const std::string path = folder + "/" + hexadecimal(hash(key));
  std::string entry = "tutti kernel 1\n";
  entry.append(key).push_back('\0');
  std::string problem;
  const std::string found = read_regular_file(path, problem).value_or("");
  constexpr std::size_t digits = 16;
  if (found.starts_with(entry) && found.size() > entry.size() + digits) {
    std::string code = found.substr(entry.size() + digits);
    if (found.compare(entry.size(), digits, hexadecimal(hash(code))) == 0) {
      return code;
    }
  }
  std::string code = build();
  write_bytes(path, entry.append(hexadecimal(hash(code))).append(code));
  return code;
}

}  // namespace tutti::detail
