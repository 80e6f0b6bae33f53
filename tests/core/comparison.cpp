#include <tutti/core/comparison.hpp>

#include <limits>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::Comparison;
using tutti::detail::direction;
using tutti::detail::is_better;
using tutti::detail::is_new_best;

TEST_CASE("a metric's name says which way is better, unless somebody does", "[core][comparison]") {
  for (const char* name : {"loss", "CrossEntropy", "MeanSquaredError", "LanguagePerplexity"}) {
    CHECK(direction(Comparison::by_name, name) == Comparison::less);
    CHECK(direction(Comparison::greater, name) == Comparison::greater);
    CHECK(is_better(Comparison::by_name, name, 1, 2));
    CHECK_FALSE(is_better(Comparison::by_name, name, 2, 1));
  }
  for (const char* name : {"MulticlassAccuracy", "Dice", "BinaryF1Score", ""}) {
    CHECK(direction(Comparison::by_name, name) == Comparison::greater);
    CHECK(direction(Comparison::less, name) == Comparison::less);
    CHECK(is_better(Comparison::by_name, name, 2, 1));
    CHECK_FALSE(is_better(Comparison::by_name, name, 1, 2));
  }
}

TEST_CASE("an equal value is no better one, and any number is better than none",
          "[core][comparison]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(is_new_best(Comparison::less, "", 1, 1));
  CHECK_FALSE(is_new_best(Comparison::greater, "", 1, 1));
  CHECK(is_new_best(Comparison::greater, "", -5, nan));
  CHECK_FALSE(is_new_best(Comparison::greater, "", nan, -5));
  CHECK_FALSE(is_new_best(Comparison::greater, "", nan, nan));
  CHECK(is_new_best(Comparison::less, "", 1, 2));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
