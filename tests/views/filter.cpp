#include <tutti/views/filter.hpp>

#include "support/catch.hpp"

#include <vector>

#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include <tutti/views/repeat.hpp>
#include <tutti/views/shard.hpp>
#include <tutti/views/take.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Numbers = std::vector<int>;

namespace {

bool odd(int i) {
  return i % 2 == 1;
}

}  // namespace

TEST_CASE("views::filter keeps what is wanted, and makes each element once", "[views][filter]") {
  int made = 0;
  const auto numbers = ranges::views::iota(0, 9) | ranges::views::transform([&made](int i) {
                         ++made;
                         return i;
                       });
  const auto some = numbers | views::filter(odd);
  tutti::detail::Pass pass;
  const auto flow = some.open(pass);
  CHECK(flow->size() == -1);
  CHECK(flow->next() == 1);
  CHECK(made == 2);
  CHECK(flow->skip(1) == 1);
  CHECK(flow->next() == 5);
  CHECK(flow->reads() == 6);
  CHECK(flow->reader() == "filter");
  CHECK(flow->skip(7) == 1);
  CHECK_FALSE(flow->next());
  CHECK(made == 9);
  CHECK(all_of(some | views::repeat(2) | views::take(6)) == Numbers{1, 3, 5, 7, 1, 3});
}

TEST_CASE("views::filter behind views::shard is refused where there are ranks",
          "[views][filter][failure]") {
  const auto some = ranges::views::iota(0, 9) | views::shard() | views::filter(odd);
  CHECK(all_of(some) == Numbers{1, 3, 5, 7});
  CHECK_THROWS_WITH(all_of(some, 0, 0, 1, 2),
                    ContainsSubstring("views::filter cannot stand behind views::shard"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
