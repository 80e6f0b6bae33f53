#include <tutti/core/log.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// In a run: tests/loggers/csv.cpp; over ranks: tests/dist/logged_values.cpp.

using tutti::detail::Listening;
using tutti::detail::LoggedValues;

TEST_CASE("log() costs its value only where somebody listens", "[log]") {
  int computed = 0;
  const auto value = [&] { return ++computed; };
  tutti::log("x", value);
  CHECK_FALSE(tutti::is_logging());
  CHECK(computed == 0);
  LoggedValues values;
  {
    const Listening listening(&values);
    tutti::log("x", value);
    {
      const Listening nobody(nullptr);
      tutti::log("x", value);
    }
    values.set_weight(3);
    tutti::log("x", 5);
    tutti::log("y", at::full({1, 1}, 0.5));
    tutti::log("y", true);
  }
  tutti::log("x", 7);
  CHECK(computed == 1);
  const auto sums = values.take();
  REQUIRE(sums.size() == 2);
  CHECK(sums.at("x").sum == 1 + 3 * 5);
  CHECK(sums.at("x").weight == 4);
  CHECK(sums.at("y").sum == 3 * 0.5 + 3);
  CHECK(values.empty());
}

TEST_CASE("log() refuses a tensor that is no number", "[log]") {
  LoggedValues values;
  const Listening listening(&values);
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(tutti::log("gate", at::ones({2, 3})),
                    ContainsSubstring("\"gate\" is a tensor [2, 3], expected one number"));
  CHECK_THROWS_WITH(tutti::log("gate", at::Tensor()), ContainsSubstring("expected one number"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
