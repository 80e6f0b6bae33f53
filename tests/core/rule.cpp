#include <tutti/core/rule.hpp>

#include <string_view>

#include "support/catch.hpp"

namespace {

struct tag {};
struct Tagged final {
  using tags = tutti::types<tag>;
};
struct Other final {};

using tutti::because;
using tutti::detail::means;
using tutti::detail::RuleEntry;

}  // namespace

TEST_CASE("a rule is about a type or a tag, with or without its reason", "[core][rule][law]") {
  STATIC_REQUIRE(means<Tagged, Tagged>);
  STATIC_REQUIRE(means<tag, Tagged>);
  STATIC_REQUIRE(!means<tag, Other>);
  STATIC_REQUIRE(means<because<tag, "it says so">, Tagged>);
  STATIC_REQUIRE(!means<because<Tagged, "it says so">, Other>);
}

TEST_CASE("a reason can be read back", "[core][rule]") {
  STATIC_REQUIRE(std::string_view(RuleEntry<because<tag, "it says so">>::reason) == "it says so");
  STATIC_REQUIRE(std::string_view(RuleEntry<tag>::reason).empty());
}

TEST_CASE("what speaks of a recipe is no policy", "[core][rule]") {
  STATIC_REQUIRE(tutti::detail::is_directive<tutti::reference_order>);
  STATIC_REQUIRE(tutti::detail::is_directive<tutti::accept<Tagged, Other>>);
  STATIC_REQUIRE(!tutti::detail::is_directive<Tagged>);
}
