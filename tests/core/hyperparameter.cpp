#include <tutti/core/hyperparameter.hpp>

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::HyperparameterValue;

template <class T>
concept Value = std::constructible_from<HyperparameterValue, T>;

static_assert(Value<bool> && Value<int> && Value<std::int64_t> && Value<std::uint32_t>);
static_assert(Value<float> && Value<double> && Value<std::string> && Value<const char*>);
static_assert(!Value<std::uint64_t>);          // an std::int64_t may not hold it
static_assert(!Value<int*> && !Value<void*>);  // and no pointer is a bool
static_assert(std::is_nothrow_move_constructible_v<HyperparameterValue>);

std::string kinds(const HyperparameterValue& value) {
  std::string out;
  out += value.get_if<bool>() != nullptr ? "bool " : "";
  out += value.get_if<std::int64_t>() != nullptr ? "integer " : "";
  out += value.get_if<double>() != nullptr ? "real " : "";
  out += value.get_if<std::string>() != nullptr ? "text " : "";
  return out;
}

}  // namespace

TEST_CASE("a hyperparameter is of one kind, the one that it was given as",
          "[core][hyperparameter][law]") {
  CHECK(kinds(true) == "bool ");
  CHECK(kinds(0) == "integer ");
  CHECK(kinds(std::uint32_t{7}) == "integer ");
  CHECK(kinds(0.0) == "real ");
  CHECK(kinds(0.5F) == "real ");
  CHECK(kinds("") == "text ");
  CHECK(kinds(std::string("true")) == "text ");
}

TEST_CASE("a hyperparameter comes back as it went in", "[core][hyperparameter][law]") {
  CHECK(*HyperparameterValue(true).get_if<bool>());
  for (const std::int64_t number :
       {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    CHECK(*HyperparameterValue(number).get_if<std::int64_t>() == number);
  }
  CHECK(*HyperparameterValue(std::uint32_t{4294967295U}).get_if<std::int64_t>() == 4294967295);
  CHECK(*HyperparameterValue(-1).get_if<std::int64_t>() == -1);
  CHECK(*HyperparameterValue(0.1).get_if<double>() == 0.1);
  CHECK(*HyperparameterValue(0.5F).get_if<double>() == 0.5);
  const std::string with_zero("a\0b", 3);
  CHECK(*HyperparameterValue(with_zero).get_if<std::string>() == with_zero);
}

TEST_CASE("the default is false", "[core][hyperparameter]") {
  const HyperparameterValue value;
  REQUIRE(value.get_if<bool>() != nullptr);
  CHECK_FALSE(*value.get_if<bool>());
  CHECK(value == HyperparameterValue(false));
}

TEST_CASE("a visitor gets the value as its own type and its answer comes back",
          "[core][hyperparameter][law]") {
  const auto name = [](const auto& value) -> std::string {
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::same_as<T, std::string>) {
      return "text " + value;
    } else {
      const char* type = std::same_as<T, bool>           ? "bool "
                         : std::same_as<T, std::int64_t> ? "integer "
                                                         : "real ";
      static_assert(std::same_as<T, bool> || std::same_as<T, std::int64_t> ||
                    std::same_as<T, double>);
      return type + std::to_string(static_cast<int>(value));
    }
  };
  CHECK(HyperparameterValue(true).visit(name) == "bool 1");
  CHECK(HyperparameterValue(-3).visit(name) == "integer -3");
  CHECK(HyperparameterValue(2.0).visit(name) == "real 2");
  CHECK(HyperparameterValue("a").visit(name) == "text a");
}

TEST_CASE("hyperparameters are equal when kind and value are", "[core][hyperparameter][law]") {
  CHECK(HyperparameterValue("a") == HyperparameterValue(std::string("a")));
  CHECK(HyperparameterValue(1) == HyperparameterValue(std::int64_t{1}));
  CHECK_FALSE(HyperparameterValue(1) == HyperparameterValue(1.0));
  CHECK_FALSE(HyperparameterValue(1) == HyperparameterValue(true));
  CHECK_FALSE(HyperparameterValue(0) == HyperparameterValue());
  CHECK_FALSE(HyperparameterValue("") == HyperparameterValue());
  CHECK_FALSE(HyperparameterValue("a") == HyperparameterValue("b"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
