// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

/// Bytes that this process has read until now; -1 where the system does not say.
inline std::int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string word;
  std::int64_t count = -1;
  file >> word >> count;
  return count;
}
