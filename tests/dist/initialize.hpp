// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <tutti/dist/process_group.hpp>

#include "support/device.hpp"

namespace tutti_test {

/// What tests of ranks train on.
inline c10::Device device() {
  return c10::Device(device_name());
}

/// The ranks' group, over NCCL where they train on a GPU.
inline auto initialize() {
  return tutti::dist::initialize(device().type());
}

}  // namespace tutti_test
