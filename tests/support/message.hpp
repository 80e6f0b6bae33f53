// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include <c10/util/Exception.h>

/// What the c10::Error says that `f` throws, without a stack trace; "nothing" when none is thrown.
inline std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}
