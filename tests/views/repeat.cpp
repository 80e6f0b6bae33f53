#include <tutti/views/repeat.hpp>

#include "support/catch.hpp"

#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/shuffle.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Numbers = std::vector<int>;

TEST_CASE("views::repeat gives the examples again, in the same order", "[views][repeat]") {
  const auto numbers = ranges::views::iota(0, 4);
  const auto odd = [](int i) { return i % 2 == 1; };
  CHECK((numbers | views::repeat(3)).size() == 12);
  CHECK(all_of(numbers | views::repeat(2)) == Numbers{0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(all_of(numbers | views::filter(odd) | views::repeat(3)) == Numbers{1, 3, 1, 3, 1, 3});
  const Numbers order = all_of(numbers | views::shuffle(2), 5);
  Numbers twice = order;
  twice.insert(twice.end(), order.begin(), order.end());
  CHECK(all_of(numbers | views::shuffle(2) | views::repeat(2), 5) == twice);
  CHECK(all_of(numbers | views::shuffle(2) | views::filter([](int) { return true; }) |
                   views::repeat(2),
               5) == twice);
  const auto sized = numbers | views::map([](int i) { return i; }, 2) | views::repeat(3);
  tutti::detail::Pass pass;
  auto flow = sized.open(pass);
  CHECK(flow->size() == 12);
  CHECK(flow->skip(9) == 9);
  CHECK(flow->next() == 1);
  CHECK(flow->skip(9) == 2);
  flow = (numbers | views::filter(odd) | views::repeat(2)).open(pass);
  CHECK(flow->size() == -1);
  CHECK(flow->skip(3) == 3);
  CHECK(flow->reads() == 6);
  CHECK(flow->reader() == "filter");
  CHECK_THROWS_WITH(views::repeat(0), ContainsSubstring("times is 0, expected 1 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
