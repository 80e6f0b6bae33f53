#include <tutti/views/take.hpp>

#include "support/catch.hpp"

#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/views/filter.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Numbers = std::vector<int>;

TEST_CASE("views::take gives the first ones, or all", "[views][take]") {
  const auto numbers = ranges::views::iota(0, 5);
  const auto stream = numbers | views::filter([](int) { return true; });
  CHECK((numbers | views::take(3)).size() == 3);
  CHECK((numbers | views::take(9)).size() == 5);
  CHECK(all_of(numbers | views::take(3)) == Numbers{0, 1, 2});
  CHECK(all_of(numbers | views::take(0)).empty());
  CHECK(all_of(stream | views::take(3)) == Numbers{0, 1, 2});
  CHECK(all_of(stream | views::take(9)) == Numbers{0, 1, 2, 3, 4});
  tutti::detail::Pass pass;
  const auto flow = (stream | views::take(4)).open(pass);
  CHECK(flow->size() == -1);
  CHECK(flow->skip(3) == 3);
  CHECK(flow->next() == 3);
  CHECK(flow->skip(3) == 0);
  CHECK_FALSE(flow->next());
  CHECK(flow->reads() == 4);
  CHECK_THROWS_WITH(views::take(-1), ContainsSubstring("n is -1, expected 0 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
