// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include <tutti/core/detail/json_quoted.hpp>

// Where torchrun looks for what a rank failed of.

namespace tutti::detail {

/// Whether this process fails since another rank is gone.
inline std::atomic<bool>& follows_another() {
  static std::atomic<bool> follows{false};
  return follows;
}

/// Leaves a failure in the file that TORCHELASTIC_ERROR_FILE names; torchrun reports the earliest.
/// Not that of a rank which failed since another one is gone.
/// Source: PyTorch, `torch.distributed.elastic.multiprocessing.errors.ErrorHandler`.
inline void write_error_file(const std::string& text) {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == 0 || follows_another().load()) {
    return;
  }
  if (std::FILE* const file = std::fopen(path, "we")) {
    std::fprintf(file,
                 "{\"message\": {\"message\": %s, \"extraInfo\": {\"py_callstack\": \"\", "
                 "\"timestamp\": \"%lld\"}}}\n",
                 json_quoted(text).c_str(), static_cast<long long>(std::time(nullptr)));
    std::fclose(file);
  }
}

}  // namespace tutti::detail
