// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace tutti::detail {

// What the exception that is being handled says, without a stack trace.
inline std::string thrown() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace tutti::detail
