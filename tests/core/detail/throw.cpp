#include <tutti/core/detail/throw.hpp>

#include <exception>
#include <string>

#include <tutti/core/validate.hpp>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

constexpr const char* traces = "TORCH_SHOW_CPP_STACKTRACES";

// What a user's catch (const std::exception&) sees.
template <class Error, class F>
std::string what(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

void reject(int size) {
  TUTTI_CHECK_VALUE(size < 3, "size is ", size, ", expected less than 3");
}

}  // namespace

TEST_CASE("what() of an exception is its sentence alone", "[core][throw]") {
  const EnvironmentVariable untraced(traces, GENERATE(as<const char*>{}, "0", nullptr));
  CHECK(what<c10::ValueError>([] { reject(4); }) == "size is 4, expected less than 3");
  CHECK(what<c10::ValueError>([] { reject(2); }) == "nothing");
  CHECK(what<c10::Error>([] { TUTTI_CHECK(false, "no"); }) == "no");
  CHECK(what<c10::IndexError>([] { TUTTI_CHECK_INDEX(false, "no"); }) == "no");
  CHECK(what<c10::NotImplementedError>([] { TUTTI_CHECK_NOT_IMPLEMENTED(false, "no"); }) == "no");
  CHECK(what<c10::ValueError>([] { tutti::expect(false, "Mine: x", 1, "2"); }) ==
        "Mine: x is 1, expected 2.");
}

TEST_CASE("what() says where an exception comes from when LibTorch is told to", "[core][throw]") {
  const EnvironmentVariable traced(traces, "1");
  const std::string text = what<c10::ValueError>([] { reject(4); });
  CHECK_THAT(text, StartsWith("size is 4, expected less than 3\n"));
  CHECK_THAT(text, ContainsSubstring("reject") && ContainsSubstring("throw.cpp"));
}

TEST_CASE("the stack trace of an exception of LibTorch's can be taken out", "[core][throw]") {
  const bool wanted = GENERATE(false, true);
  const EnvironmentVariable variable(traces, wanted ? "1" : "0");
  const std::string text = what<c10::IndexError>([] {
    try {
      TORCH_CHECK_INDEX(false, "beyond the end");
    } catch (...) {
      tutti::detail::drop_stack_trace(std::current_exception());
      throw;
    }
  });
  CHECK_THAT(text, StartsWith("beyond the end"));
  CHECK((text == "beyond the end") == !wanted);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
