#include <tutti/core/on_or_warn.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::OnOrWarn;

static_assert(!OnOrWarn() && OnOrWarn() == OnOrWarn(false));
static_assert(OnOrWarn(true) && !OnOrWarn(true).warns);
static_assert(OnOrWarn("warn") && OnOrWarn("warn").warns && OnOrWarn("warn") != OnOrWarn(true));
static_assert(!std::is_convertible_v<int, OnOrWarn>);
static_assert(to_string(OnOrWarn("warn")) == "warn" && to_string(OnOrWarn(true)) == "true" &&
              to_string(OnOrWarn()) == "false");

TEST_CASE("a text that is not warn is refused", "[core]") {
  CHECK_THROWS_WITH(OnOrWarn("true"), Catch::Matchers::ContainsSubstring(
                                          "is true, expected \"warn\", or true or false without"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
