// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

// See gloo/algorithm.h in this folder.

namespace gloo {

namespace transport {

/// A buffer of a point-to-point message; never made or used by tutti.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace transport

/// The connections of one group; used only by pointer. The function lives in LibTorch.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
