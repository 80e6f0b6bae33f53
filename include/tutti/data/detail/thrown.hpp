#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace tutti::data::detail {

// What the exception that is being handled says.
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

// Throws c10::Error with `prefix` and what the exception being handled says, which is nested in it.
[[noreturn]] inline void throw_over(const std::string& prefix) {
  std::throw_with_nested(
      c10::Error({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, prefix + thrown()));
}

}  // namespace tutti::data::detail
