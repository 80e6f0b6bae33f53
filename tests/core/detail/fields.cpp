#include <tutti/core/detail/fields.hpp>

#include <any>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/lazy.hpp>
#include <tutti/core/time.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct Options final {
  double alpha = 0.2;
  bool interpolate_loss = false;
  tutti::Time half_life = "3ba";
  tutti::Lazy<std::string> text{};
};
struct Nothing final {};
// Whose members cannot be listed.
struct Array final {
  double first = 1;
  int all[3] = {};
};
struct Base {
  int rate = 0;
};
struct Derived final : Base {
  int more = 0;
};
struct Unknown final {
  std::any first;  // made of anything, so that nobody can tell of what
  int second = 0;
};
struct Twenty final {
  int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t;
};
struct TwentyOne final {
  int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u;
};
// Whose can.
struct Classes final {
  std::optional<int> maybe;
  std::string text;
  std::vector<int> list;
  std::function<void()> call;
  std::array<int, 3> three{};
  Nothing nothing;
};
// A policy's: options, and what it holds while it runs.
struct Averages final {
  double decay = 0.9;
  struct Run {
    bool started = false;
    tutti::Lazy<std::vector<int>> seen{};
  } run{};
};
struct OtherRun final {
  struct Run {};
  std::string run = "first";  // of another type, and so an option
};
enum class Colour : std::uint8_t { red, green2 = 7, far = 200 };

}  // namespace

TEST_CASE("an enumerator has a name, a number that is none has not", "[core][fields]") {
  CHECK(tutti::detail::enumerator_name(Colour::red) == "red");
  CHECK(tutti::detail::enumerator_name(Colour::green2) == "green2");
  CHECK(tutti::detail::enumerator_name(static_cast<Colour>(3)).empty());
  CHECK(tutti::detail::enumerator_name(Colour::far).empty());
}

TEST_CASE("members of an aggregate have names and values", "[core][fields]") {
  using tutti::detail::field_name;
  STATIC_REQUIRE(tutti::detail::count_fields<Options>() == 4);
  STATIC_REQUIRE(field_name<Options, 0>() == "alpha");
  STATIC_REQUIRE(field_name<Options, 1>() == "interpolate_loss");
  STATIC_REQUIRE(field_name<Options, 2>() == "half_life");
  STATIC_REQUIRE(field_name<Options, 3>() == "text");
  std::string seen;
  tutti::detail::for_each_field(
      Options{}, [&](std::string_view name, const auto&) { seen += std::string(name) + " "; });
  CHECK(seen == "alpha interpolate_loss half_life text ");
  STATIC_REQUIRE(tutti::detail::count_fields<Nothing>() == 0);
}

TEST_CASE("what a policy holds while it runs is none of its options", "[core][fields]") {
  const auto options = [](const auto& value) {
    std::string names;
    tutti::detail::for_each_option(
        value, [&](std::string_view name, const auto&) { names += std::string(name) + " "; });
    return names;
  };
  STATIC_REQUIRE(tutti::detail::count_fields<Averages>() == 2);
  CHECK(options(Averages{}) == "decay ");
  CHECK(options(OtherRun{}) == "run ");
  CHECK(options(Options{}) == "alpha interpolate_loss half_life text ");
}

TEST_CASE("a struct whose members cannot be listed is told from one that has them",
          "[core][fields]") {
  using tutti::detail::has_fields;
  STATIC_REQUIRE(!has_fields<Array>());
  STATIC_REQUIRE(!has_fields<Derived>());
  STATIC_REQUIRE(!has_fields<Unknown>());
  STATIC_REQUIRE(!has_fields<TwentyOne>());
  STATIC_REQUIRE(has_fields<Twenty>());
  STATIC_REQUIRE(tutti::detail::field_name<Twenty, 19>() == "t");
  STATIC_REQUIRE(has_fields<Classes>());
  STATIC_REQUIRE(has_fields<Nothing>());
  struct Local final {
    double rate = 0.5;
    bool on = true;
  };
  STATIC_REQUIRE(has_fields<Local>());
  STATIC_REQUIRE(tutti::detail::field_name<Local, 0>() == "rate");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
