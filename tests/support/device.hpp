// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

namespace tutti_test {

/// The device that tests of whole runs train on: what TUTTI_TEST_DEVICE says ("cuda"), else the
/// CPU.
inline std::string device_name() {
  const char* const given = std::getenv("TUTTI_TEST_DEVICE");
  return given == nullptr || *given == '\0' ? "cpu" : given;
}

}  // namespace tutti_test
