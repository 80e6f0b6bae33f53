// SPDX-License-Identifier: Apache-2.0
#pragma once

// Catch2 3.x and 2.13 have different header names and one test source serves both.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // as Catch2 2 has it
#else
#include <catch2/catch.hpp>
namespace Catch::Matchers {  // the names that Catch2 3 uses
inline auto ContainsSubstring(const std::string& text) {
  return Contains(text);
}
}  // namespace Catch::Matchers
#endif

#include <string>

namespace tutti_test {

/// Says why the rest of a test case does not run on this machine: `return skip("...")`. A program
/// in which a case was skipped and none failed ends with 77, which CTest counts as skipped;
/// cmake/test.cmake lists the reasons. Catch2 2 has nothing of the kind.
void skip(const std::string& reason);

}  // namespace tutti_test
