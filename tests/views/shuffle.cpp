#include <tutti/views/shuffle.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/data/sampler.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Numbers = std::vector<std::int64_t>;

namespace {

const auto numbers = ranges::views::iota(std::int64_t(0), std::int64_t(50));

}  // namespace

TEST_CASE("views::shuffle has the order of DistributedSampler", "[views][shuffle][law]") {
  const tutti::DistributedSampler sampler(50, {.shuffle = true, .seed = 17});
  for (const std::int64_t epoch : {0, 1, 7}) {
    CHECK(all_of(numbers | views::shuffle(17), epoch) == sampler.indices_for(epoch));
  }
}

TEST_CASE("views::shuffle follows the run's seed unless it has one of its own",
          "[views][shuffle]") {
  CHECK(all_of(numbers | views::shuffle(), 2, 5) == all_of(numbers | views::shuffle(5), 2));
  CHECK(all_of(numbers | views::shuffle(5), 2, 6) == all_of(numbers | views::shuffle(5), 2));
  CHECK(all_of(numbers | views::shuffle(), 2, 6) != all_of(numbers | views::shuffle(), 2, 5));
}

TEST_CASE("views::shuffle of nothing is nothing", "[views][shuffle]") {
  CHECK(all_of(Numbers{} | views::shuffle(1)).empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
