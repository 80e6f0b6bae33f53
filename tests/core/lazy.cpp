#include <tutti/core/lazy.hpp>

#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::Lazy;

struct Policy {
  int option = 1;
  Lazy<std::vector<std::string>> names{};
};
template <Policy P>
constexpr int option_of = P.option;

}  // namespace

TEST_CASE("a struct with lazy parts can be a template argument", "[core][lazy][law]") {
  STATIC_REQUIRE(option_of<Policy{.option = 5}> == 5);
}

TEST_CASE("a lazy value is made on first use and not before", "[core][lazy]") {
  Lazy<std::string> text;
  CHECK(!text);
  CHECK(std::as_const(text)->empty());
  CHECK(!text);
  *text = "here";
  CHECK(static_cast<bool>(text));
  CHECK(*std::as_const(text) == "here");
  text.reset();
  CHECK(!text);
}

TEST_CASE("copies of a lazy value are deep, and moving takes it along", "[core][lazy]") {
  Lazy<std::string> first;
  *first = "one";
  Lazy<std::string> second = first;
  *second = "two";
  CHECK(*first == "one");
  Lazy<std::string> third = std::move(first);
  CHECK(*third == "one");
  second = third;
  CHECK(*second == "one");
  second = std::string("three");
  CHECK(*second == "three");
  CHECK(*third == "one");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
