#include <tutti/metrics/masked_accuracy.hpp>

#include <cmath>

#include <ATen/ATen.h>

#include "metrics/support.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("masked accuracy agrees with the reference after every batch", "[metrics][golden]") {
  check_against_reference("metric_MaskedAccuracy", [](const golden::Json& args) {
    const auto* ignored = args.find("ignore_index");
    return tutti::MaskedAccuracy{ignored == nullptr ? -100 : ignored->integer()};
  });
}

TEST_CASE("shapes that do not fit are refused by masked accuracy", "[metrics]") {
  CHECK_THROWS_WITH(tutti::MaskedAccuracy{}.update(at::zeros({2, 3}), at::zeros({3}, at::kLong)),
                    ContainsSubstring("outputs [2, 3] and targets [3]"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
