#include <tutti/views/shard.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <list>
#include <vector>

#include <range/v3/view/filter.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <tutti/data/sampler.hpp>
#include <tutti/views/batch.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/shuffle.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Numbers = std::vector<std::int64_t>;

TEST_CASE("views::shard deals as DistributedSampler", "[views][shard][law]") {
  const auto same = [](std::int64_t i) { return i; };
  for (const bool drop : {false, true}) {
    for (const std::int64_t n : {1, 2, 7, 12}) {
      for (const std::int64_t world : {1, 2, 3, 5}) {
        for (std::int64_t rank = 0; rank < world; ++rank) {
          INFO(drop << " " << n << " " << rank << " " << world);
          const auto numbers = ranges::views::iota(std::int64_t(0), n);
          const Numbers expected =
              tutti::DistributedSampler(n, {.drop_last = drop, .rank = rank, .world_size = world})
                  .indices();
          CHECK(all_of(numbers | views::shard(drop), 0, 0, rank, world) == expected);
          CHECK(all_of(numbers | views::map(same, 2) | views::shard(drop), 0, 0, rank, world) ==
                expected);
        }
      }
    }
  }
}

TEST_CASE("batches are not dealt a second time, also through a view of range-v3",
          "[views][shard]") {
  const auto numbers = ranges::views::iota(0, 10);
  auto loader = numbers | views::shard() | ranges::views::transform(example) | views::shuffle(1) |
                views::batch(2);
  loader.shard(1, 2);
  CHECK(loader.size() == 3);
  CHECK(loader.dataset_size() == 10);
  at::Tensor seen = at::zeros({10});
  for (const tutti::Batch& batch : rest_of(loader, 0)) {
    seen.index_add_(0, batch.inputs().select(1, 0).to(at::kLong), at::ones(batch.inputs().size(0)));
  }
  CHECK(seen.equal(at::arange(10).remainder(2).to(at::kFloat)));
  auto threads = numbers | views::map(example, 2) | views::shard() | views::batch(2);
  threads.shard(1, 2);
  CHECK(threads.size() == 3);
  CHECK(threads.dataset_size() == 10);
  CHECK(rest_of(threads, 0).back().inputs()[0][0].item<float>() == 9);
}

TEST_CASE("views::shard stands once, and not before what shows its length at its end",
          "[views][shard][failure]") {
  const auto numbers = ranges::views::iota(0, 10);
  CHECK_THROWS_WITH(all_of(numbers | views::shard() | views::shard()),
                    ContainsSubstring("dealt to ranks already"));
  auto loader = numbers | views::shard() | ranges::views::filter([](int) { return true; }) |
                views::map(example) | views::batch(2);
  CHECK_THROWS_WITH(loader.shard(0, 2),
                    ContainsSubstring("a range of a length that shows only at its end cannot stand "
                                      "behind views::shard"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
