#include <tutti/core/validate.hpp>

#include <string>

#include <tutti/core/time.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::expect;
using tutti::Key;
using tutti::Keys;
using tutti::Maybe;

struct Options {
  Key key{};
  Keys keys{};
  Maybe<double> number{};
  tutti::Time time{};
};
template <Options O>
constexpr bool has_number = static_cast<bool>(O.number);

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace

TEST_CASE("hyperparameters of every kind can be template arguments", "[core][validate][law]") {
  STATIC_REQUIRE(!has_number<Options{.key = "image", .keys = {"a", "b*"}, .time = "3ep"}>);
  STATIC_REQUIRE(has_number<Options{.number = 0.5}>);
}

TEST_CASE("what is out of range is said with value and range", "[core][validate]") {
  expect(true, "MixUp: alpha", 1.0, "0 or more");
  CHECK(message_of([] { expect(false, "MixUp: alpha", -1.0, "0 or more"); }) ==
        "MixUp: alpha is -1, expected 0 or more.");
  CHECK(message_of([] { expect(false, "SAM: interval", 0, "1 or more"); }) ==
        "SAM: interval is 0, expected 1 or more.");
  CHECK(message_of([] { expect(false, "EMA: half_life", tutti::Time("3ep"), "batches"); }) ==
        "EMA: half_life is 3ep, expected batches.");
  CHECK(message_of([] { expect(false, "two of them contradict each other."); }) ==
        "two of them contradict each other.");
}

TEST_CASE("a key is a short text", "[core][validate]") {
  STATIC_REQUIRE(Key{}.empty());
  STATIC_REQUIRE(std::string_view(Key("image")) == "image");
  CHECK(std::string_view(Key(std::string("image"))) == "image");
  CHECK(message_of([] { static_cast<void>(Key(std::string(96, 'x'))); }) ==
        "the length of a name among hyperparameters is 96, expected 95 characters at most.");
}

TEST_CASE("keys are a few short texts", "[core][validate]") {
  constexpr Keys keys{"a", "b"};
  STATIC_REQUIRE(!keys.empty());
  STATIC_REQUIRE(keys.end() - keys.begin() == 2);
  CHECK(Keys(std::vector<std::string>{"a", "b"}) == keys);
  CHECK_THROWS_AS(Keys(std::vector<std::string>(17, "a")), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
