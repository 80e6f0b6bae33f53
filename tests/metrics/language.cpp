#include <tutti/metrics/language.hpp>

#include <cmath>

#include <ATen/ATen.h>

#include "metrics/support.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("language cross entropy and perplexity agree with the reference after every batch",
          "[metrics][golden]") {
  check_against_reference("metric_LanguageCrossEntropy",
                          [](const golden::Json&) { return tutti::LanguageCrossEntropy{}; });
  check_against_reference("metric_LanguagePerplexity",
                          [](const golden::Json&) { return tutti::LanguagePerplexity{}; });
}

TEST_CASE("every token weighs alike, whatever its batch", "[metrics][law]") {
  const auto x = at::randn({2, 6, 9});
  const auto y = at::randint(0, 9, {2, 6}, at::kLong);
  tutti::LanguageCrossEntropy whole;
  tutti::LanguageCrossEntropy parts;
  whole.update(x, y);
  parts.update(x.slice(1, 0, 1), y.slice(1, 0, 1));
  parts.update(x.slice(1, 1), y.slice(1, 1));
  CHECK(std::abs(whole.compute() - parts.compute()) < 1e-6);
}

TEST_CASE("the losses of half-precision logits are summed up in fp32", "[metrics]") {
  const auto y = at::zeros({40'000}, at::kLong);  // their sum is beyond half precision
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    tutti::LanguageCrossEntropy metric;
    metric.update(at::zeros({40'000, 8}, type), y);
    CHECK(std::abs(metric.compute() - std::log(8.0)) < 1e-5);
  }
}

TEST_CASE("shapes that do not fit are refused by language metrics", "[metrics]") {
  CHECK_THROWS_WITH(
      tutti::LanguagePerplexity{}.update(at::zeros({2, 3, 5}), at::zeros({2}, at::kLong)),
      ContainsSubstring("LanguagePerplexity: outputs [2, 3, 5] and targets [2]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
