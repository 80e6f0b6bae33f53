#include <tutti/views/zip.hpp>

#include "support/catch.hpp"

#include <list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/views/batch.hpp>
#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/shard.hpp>
#include <tutti/views/shuffle.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Pairs = std::vector<std::pair<int, std::string>>;

namespace {

const std::vector<std::string> words{"a", "b", "c", "d"};

}  // namespace

TEST_CASE("views::zip pairs elements up to the shortest range", "[views][zip]") {
  const auto numbers = ranges::views::iota(0, 3);
  const auto all = [](int) { return true; };
  const Pairs expected{{0, "a"}, {1, "b"}, {2, "c"}};
  CHECK((all_of(views::zip(numbers, words)) == expected));
  CHECK(views::zip(numbers, words).size() == 3);
  CHECK((all_of(views::zip(numbers | views::filter(all), words)) == expected));
  CHECK((all_of(views::zip(numbers, std::list<std::string>(words.begin(), words.end()))) ==
         expected));
  CHECK((all_of(views::zip(numbers, words, numbers)) ==
         std::vector<std::tuple<int, std::string, int>>{{0, "a", 0}, {1, "b", 1}, {2, "c", 2}}));
  tutti::detail::Pass pass;
  const auto flow = views::zip(numbers | views::filter(all), words).open(pass);
  CHECK(flow->skip(2) == 2);
  CHECK((flow->next() == expected[2]));
  CHECK_FALSE(flow->next());
  CHECK(flow->reader() == "filter");
  CHECK(flow->reads() == 3);
}

TEST_CASE("a pair of tensors is an example's inputs and targets", "[views][zip]") {
  const auto numbers = ranges::views::iota(0, 6);
  const auto twice = [](int i) { return example(2 * i); };
  const auto loader = views::zip(numbers | views::map(example), numbers | views::map(twice)) |
                      views::shuffle(1) | views::batch(4);
  for (const tutti::Batch& batch : rest_of(loader, 1)) {
    CHECK(batch.targets().equal(2 * batch.inputs()));
  }
}

TEST_CASE("views::zip takes ranges that are dealt all, or none", "[views][zip][failure]") {
  const auto numbers = ranges::views::iota(0, 4);
  CHECK((all_of(views::zip(numbers | views::shard(), words | views::shard()), 0, 0, 1, 2) ==
         Pairs{{1, "b"}, {3, "d"}}));
  CHECK_THROWS_WITH(all_of(views::zip(numbers | views::shard(), words)),
                    ContainsSubstring("views::zip: 1 of its 2 ranges have views::shard"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
