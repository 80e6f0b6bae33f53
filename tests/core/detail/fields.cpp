#include <tutti/core/detail/fields.hpp>

#include <cstdint>
#include <string>

#include <tutti/core/lazy.hpp>
#include <tutti/core/time.hpp>

#include "support/catch.hpp"

namespace {

struct Options final {
  double alpha = 0.2;
  bool interpolate_loss = false;
  tutti::Time half_life = "3ba";
  tutti::Lazy<std::string> text{};
};
struct Nothing final {};
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
