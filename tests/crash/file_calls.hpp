// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

// This program has its own open, write, fsync, rename, ..., which see every file operation of the
// thread that asks for it and then do what the system's do. The library knows nothing of it.

namespace crash {

/// One operation that changes files, before it is done.
struct Call {
  enum Kind { create, mkdir, symlink, write, sync, rename, exchange, unlink };
  Kind kind;
  std::string path;   ///< what is changed
  std::string other;  ///< rename, exchange: the second name; symlink: where it leads
  std::string data;   ///< write: the bytes
};

/// Calls `seen` before every operation of this thread below `folder`, while it lives. Not nested.
class Watch {
 public:
  Watch(std::string folder, std::function<void(const Call&)> seen);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool no_exchange = false;  ///< renameat2 fails as on file systems that lack it
  bool no_symlink = false;   ///< symlink fails likewise
};

}  // namespace crash
