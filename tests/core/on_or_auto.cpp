#include <tutti/core/on_or_auto.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::OnOrAuto;

static_assert(!OnOrAuto() && OnOrAuto() == OnOrAuto(false));
static_assert(OnOrAuto(true) && OnOrAuto(true).on && !OnOrAuto(true).automatic);
static_assert(OnOrAuto("auto") && OnOrAuto("auto").automatic && OnOrAuto("auto") != OnOrAuto(true));
static_assert(!std::is_convertible_v<int, OnOrAuto>);
static_assert(to_string(OnOrAuto("auto")) == "auto" && to_string(OnOrAuto(true)) == "true" &&
              to_string(OnOrAuto()) == "false");

TEST_CASE("a text that is not auto is refused", "[core]") {
  CHECK_THROWS_WITH(OnOrAuto("true"), Catch::Matchers::ContainsSubstring(
                                          "is true, expected \"auto\", or true or false without"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
