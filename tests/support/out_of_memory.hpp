// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

namespace tutti_test {

/// Throws what a device without room does.
[[noreturn]] inline void out_of_memory() {
  throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory. (injected)");
}

}  // namespace tutti_test
