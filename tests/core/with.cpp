#include <tutti/core/with.hpp>

#include <type_traits>

#include <tutti/core/engine.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::State;
using tutti::With;

struct Scale final {
  double factor = 1;
  int calls = 0;
  constexpr void validate() const {
    if (factor < 0) {
      throw "factor is negative";
    }
  }
  void apply(tutti::BatchEnd, State&) { ++calls; }
};
struct Fixed final {
  int value = 3;
  void apply(tutti::BatchEnd, State&) const {}
};

struct NoState {};

}  // namespace

TEST_CASE("With is its policy in a recipe", "[core][with][law]") {
  using R = tutti::Recipe<With<Scale{.factor = 2}>, Fixed>;
  STATIC_REQUIRE(R::valid);
  STATIC_REQUIRE(R::has<Scale>);
  STATIC_REQUIRE(std::is_same_v<R::order<tutti::BatchEnd>, tutti::types<Scale, Fixed>>);
  STATIC_REQUIRE(R::describe().starts_with("recipe: Scale, Fixed\n"));
}

TEST_CASE("an engine's policy starts with the values of With", "[core][with]") {
  tutti::Engine<Fixed, With<Scale{.factor = 2}>> engine;
  CHECK(engine.get<Scale>().factor == 2);
  CHECK(engine.get<Scale>().calls == 0);
  CHECK(engine.get<Fixed>().value == 3);
}

TEST_CASE("different values are different types", "[core][with][law]") {
  STATIC_REQUIRE(!std::is_same_v<With<Scale{.factor = 2}>, With<Scale{.factor = 3}>>);
  STATIC_REQUIRE(std::is_same_v<With<Scale{.factor = 2}>, With<Scale{.factor = 2.0}>>);
}

TEST_CASE("a policy that is const in its recipe stands for itself", "[core][with]") {
  STATIC_REQUIRE(tutti::Recipe<const Fixed>::has<Fixed>);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
