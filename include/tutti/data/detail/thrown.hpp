// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include <c10/util/Exception.h>

#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/thrown.hpp>

namespace tutti::data::detail {

using tutti::detail::thrown;

// Throws c10::Error with `prefix` and what the exception being handled says, which is nested in it.
// Its what() is the sentence alone, as TUTTI_CHECK's.
[[noreturn]] inline void throw_over(const std::string& prefix) {
  std::throw_with_nested(::tutti::detail::make_error<c10::Error>(
      {__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, prefix + thrown()));
}

}  // namespace tutti::data::detail
