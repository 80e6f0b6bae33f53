// SPDX-License-Identifier: Apache-2.0
#pragma once

// See gloo/algorithm.h in this folder.

namespace gloo::transport {

/// A network device; made by c10d::ProcessGroupGloo's own functions, used only by pointer.
class Device;

}  // namespace gloo::transport
