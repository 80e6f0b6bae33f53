#include <tutti/core/count_or_auto.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::CountOrAuto;

static_assert(CountOrAuto().count == 0 && !CountOrAuto().automatic);
static_assert(CountOrAuto("auto").automatic);
static_assert(CountOrAuto(8U) == CountOrAuto(8));
static_assert(CountOrAuto("auto") != CountOrAuto(0));

TEST_CASE("a text that is neither a number nor auto is refused", "[core]") {
  CHECK_THROWS_WITH(CountOrAuto("8"), Catch::Matchers::ContainsSubstring(
                                          "is 8, expected \"auto\", or a number without quotes"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
