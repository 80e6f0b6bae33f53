#include <tutti/core/time_value.hpp>

#include "support/catch.hpp"

#include <limits>
#include <string>
#include <unordered_map>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Options {
  Time max_duration;
  Time t_warmup = "1ep";
  Time t_max = "1dur";
};
constexpr Options options{.max_duration = "10ep", .t_warmup = 5};

template <Time T>
struct With {
  static constexpr Time value = T;
};

}  // namespace

// Literals, integers and template arguments.
static_assert(options.max_duration == Time::epochs(10) && options.t_warmup == Time::epochs(5));
static_assert(options.t_max == Time::duration(1.0));
static_assert(With<"10ba"_t>::value == Time::batches(10));
static_assert(With<Time("0.5dur")>::value == Time::duration(0.5));
static_assert(!std::is_convertible_v<double, Time> && !std::is_convertible_v<bool, Time>);
static_assert(!std::is_convertible_v<const char*, Time>);
static_assert(!std::is_convertible_v<std::string, Time>);
static_assert(std::is_trivially_copyable_v<Time> && sizeof(Time) == 16);

// Arithmetic in constant expressions.
static_assert("1ep"_t / "2ep"_t == "0.5dur" && "0.5dur"_t * "2ep"_t == "1ep");
static_assert("3ep"_t % "2ep"_t == "1ep" && "-7ba"_t % "3ba"_t == "2ba" && "7ba"_t % -3 == "-2ba");
static_assert(("0.7dur"_t % "0.2dur"_t).value() == 0.09999999999999992);  // not rounded on the way
static_assert(("-0.7dur"_t % "0.2dur"_t).value() == 0.10000000000000009);
static_assert("1e300dur"_t % "1dur"_t < 1);
static_assert(2 * "12sp"_t + 1 == "25sp" && 10 - "3ba"_t == "7ba" && -"3ba"_t == -3);
static_assert("1h20m40s"_t == "4840sec" && "90m"_t == "1h30m" && "24h"_t == "86400sec");
static_assert("2ba"_t < "3ba" && "0.5dur"_t >= 0.5 && 4 > "3ep"_t);
static_assert(!Time{} && !"0dur"_t && "1ba"_t);

TEST_CASE("a time string is read with its unit whatever its case, blanks and number format",
          "[time][law]") {
  CHECK(Time::parse(" 7ba\n") == "7ba"_t);
  CHECK(Time::parse("1EP") == "1ep"_t);
  CHECK(Time::parse("1 ep") == "1ep"_t);
  CHECK(Time::parse("3e10sp") == Time::samples(30'000'000'000));
  CHECK(Time::parse("4_000tok") == Time::tokens(4000));
  CHECK(Time::parse("2.50e1sp") == Time::samples(25));
  CHECK(Time::parse("1e0ba") == Time::batches(1));
  CHECK(Time::parse("9223372036854775807tok") ==
        Time::tokens(std::numeric_limits<std::int64_t>::max()));
  CHECK(Time::parse("-1ep") == Time::epochs(-1));
  CHECK(Time::parse("5.dur") == Time::duration(5));
  CHECK(Time::parse("1e-2dur") == Time::duration(0.01));
  CHECK(Time::parse("-0dur") == Time::duration(0));
  CHECK(Time::parse("2H5M10S") == Time::seconds(7510));
  CHECK(Time::parse("100h") == Time::seconds(360'000));
}

TEST_CASE("a time string that cannot be read is refused with the text, the fault and the grammar",
          "[time][error]") {
  const auto refused = [](std::string text, const std::string& why) {
    INFO(text);
    CHECK_THROWS_WITH(Time::parse(text), ContainsSubstring("\"" + text + "\"") &&
                                             ContainsSubstring(why) &&
                                             ContainsSubstring("Expected <number><unit>"));
    CHECK_THROWS_AS(Time::parse(text), std::invalid_argument);
  };
  refused("", "it is empty");
  refused("ep", "does not begin with a number");
  refused("10", "has no unit");
  refused("1h5", "unit is unknown");
  refused("1epoch", "unit is unknown");
  refused("1ep2ba", "unit is unknown");
  refused("1s1m", "unit is unknown");
  refused("1.5ep", "not whole");
  refused("1.0000000000000000000001ep", "not whole");
  refused("1e400tok", "too large");
  refused("9223372036854775808tok", "too large");
  refused("1e400dur", "too large");
  refused("99999999999999999999h", "too large");
  refused("nandur", "does not begin with a number");
  refused("infba", "does not begin with a number");
  refused("1__0ba", "does not begin with a number");
  refused("1_ba", "does not begin with a number");
  refused("_1ba", "does not begin with a number");
  refused("--1ep", "does not begin with a number");
  refused("1 hour", "unit is unknown");
}

TEST_CASE("writing a time and reading it back gives the same time", "[time][law]") {
  for (const char* text :
       {"10ep", "3iter", "-2ba", "8sp", "100tok", "30sec", "0.5dur", "1.0dur", "0.0dur", "-0.25dur",
        "0.30000000000000004dur", "0.1dur", "12345.678dur", "1e-09dur", "1e+20dur",
        "1.7976931348623157e+308dur", "2.2250738585072014e-308dur"}) {
    CHECK(to_string(Time::parse(text)) == text);
  }
  double x = 0.123456789;
  for (int i = 0; i < 2000; ++i) {
    x = x * 1.37 > 1e12 ? x * 1e-14 : x * 1.37;
    INFO(x);
    CHECK(Time::parse(to_string(Time::duration(x))).value() == x);
  }
  CHECK(to_string("1h20m40s"_t) == "4840sec");
}

TEST_CASE("times of different units are not combined, and the message names both",
          "[time][error]") {
  CHECK_THROWS_AS("1ep"_t + "1ba"_t, TimeUnitError);
  CHECK_THROWS_AS("1ep"_t - "1dur"_t, TimeUnitError);
  CHECK_THROWS_AS("1ep"_t / "1ba"_t, TimeUnitError);
  CHECK_THROWS_AS("1ep"_t % "1ba"_t, TimeUnitError);
  CHECK_THROWS_AS("1ep"_t * "1ep"_t, TimeUnitError);
  CHECK_THROWS_AS("1ep"_t == "1ba"_t, TimeUnitError);
  CHECK_THROWS_WITH("1ep"_t < "2ba"_t,
                    "Time: cannot compare 1ep and 2ba: the units are ep and ba; "
                    "they must be the same.");
  CHECK_THROWS_WITH("1ep"_t * "2ba"_t, ContainsSubstring("one of them must be dur"));
}

TEST_CASE("plain numbers take the unit of the time beside them", "[time][law]") {
  CHECK(("7ba"_t / 2) == "3ba"_t);
  CHECK(("-7ba"_t / 2) == "-3ba"_t);
  CHECK(("7ba"_t / 2.5) == "2ba"_t);
  CHECK(("10ba"_t * 0.37) == "3ba"_t);
  CHECK(("0.3dur"_t + 0.1) == "0.4dur"_t);
  CHECK((1.0 - "0.25dur"_t) == "0.75dur"_t);
  CHECK(("1dur"_t / 4U) == "0.25dur"_t);
  Time t = "1ba";
  t += 2;
  t -= "1ba";
  CHECK(t == 2);
  CHECK_THROWS_WITH("7ba"_t + 0.5, ContainsSubstring("not a whole number of ba"));
  CHECK_THROWS_AS("7ba"_t < 0.5, std::invalid_argument);
}

TEST_CASE("results that do not fit and divisions by zero throw", "[time][error]") {
  const Time largest = Time::tokens(std::numeric_limits<std::int64_t>::max());
  CHECK_THROWS_AS(largest + 1, std::overflow_error);
  CHECK_THROWS_AS(-largest - 2, std::overflow_error);
  CHECK_THROWS_AS(largest * 2, std::overflow_error);
  CHECK_THROWS_AS(largest * 1.5, std::overflow_error);
  CHECK_THROWS_AS(Time(std::numeric_limits<std::uint64_t>::max()), std::overflow_error);
  CHECK_THROWS_AS("7ba"_t / "0ba"_t, std::domain_error);
  CHECK_THROWS_AS("7ba"_t / 0, std::domain_error);
  CHECK_THROWS_AS("7ba"_t % 0, std::domain_error);
  CHECK_THROWS_AS(Time::duration(std::numeric_limits<double>::quiet_NaN()), std::invalid_argument);
  CHECK_THROWS_AS(Time::duration(std::numeric_limits<double>::infinity()), std::invalid_argument);
  CHECK_THROWS_AS(Time(0.5, TimeUnit::epoch), std::invalid_argument);
}

TEST_CASE("the number of a time is read as an integer or as a double", "[time][law]") {
  CHECK("9tok"_t.count() == 9);
  CHECK("0.9dur"_t.count() == 0);
  CHECK("-1.9dur"_t.count() == -1);
  CHECK("3sp"_t.value() == 3.0);
  CHECK("0.25dur"_t.value() == 0.25);
}

TEST_CASE("from_input coerces times, strings and numbers", "[time][law]") {
  CHECK(Time::from_input("3ba"_t, TimeUnit::epoch) == "3ba"_t);
  CHECK(Time::from_input(std::string("3ba"), TimeUnit::epoch) == "3ba"_t);
  CHECK(Time::from_input(3, TimeUnit::batch) == "3ba"_t);
  CHECK(Time::from_input(0.5, TimeUnit::duration) == "0.5dur"_t);
}

TEST_CASE("equal times hash equally, units apart", "[time][law]") {
  const std::hash<Time> hash;
  CHECK(hash("0dur"_t) == hash(Time::duration(-0.0)));
  CHECK(hash("3ep"_t) != hash("3ba"_t));
  std::unordered_map<Time, int> map{{"1ba"_t, 1}, {"2ba"_t, 2}};
  CHECK(map.at("2ba"_t) == 2);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
