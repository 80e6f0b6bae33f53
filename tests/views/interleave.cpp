#include <tutti/views/interleave.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/repeat.hpp>
#include <tutti/views/take.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Numbers = std::vector<int>;

TEST_CASE("views::interleave gives each range its share at any place", "[views][interleave][law]") {
  const auto a = ranges::views::iota(0, 1000);
  const auto b = ranges::views::iota(1000, 1400);
  const auto c = ranges::views::iota(2000, 2100);
  const auto mixed = views::interleave({6, 3, 1}, a, b, c);
  const Numbers got = all_of(mixed);
  CHECK(got.size() == mixed.size());
  CHECK(std::abs(std::ssize(got) - 1000) <= 10);
  std::vector<int> next{0, 1000, 2000};
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto range = static_cast<std::size_t>(got[i] / 1000);
    REQUIRE(got[i] == next[range]++);
    const auto place = static_cast<double>(i + 1);
    CHECK(std::abs(next[0] - 0.6 * place) <= 1);
    CHECK(std::abs(next[1] - 1000 - 0.3 * place) <= 1);
    CHECK(std::abs(next[2] - 2000 - 0.1 * place) <= 1);
  }
  const auto same = [](int i) { return i; };
  const auto sized = views::interleave({6, 3, 1}, a | views::map(same, 0), b, c);
  CHECK(all_of(sized) == got);
  tutti::detail::Pass pass;
  const auto flow = sized.open(pass);
  CHECK(flow->size() == std::ssize(got));
  CHECK(flow->skip(300) == 300);
  CHECK(flow->next() == got[300]);
  CHECK(flow->skip(5000) == std::ssize(got) - 301);
  CHECK_FALSE(flow->next());
}

TEST_CASE("views::interleave ends with the range that has none left", "[views][interleave]") {
  const Numbers few{1, 2};
  const auto many = ranges::views::iota(10, 90);
  CHECK(all_of(views::interleave({1, 1}, few, many)) == Numbers{1, 10, 2, 11});
  CHECK(all_of(views::interleave({1, 1}, few | views::repeat(2), many)) ==
        Numbers{1, 10, 2, 11, 1, 12, 2, 13});
  const auto all = [](int) { return true; };
  CHECK(all_of(views::interleave({1, 1}, few | views::filter(all), many)) == Numbers{1, 10, 2, 11});
  CHECK(all_of(views::interleave({1, 1}, Numbers{}, many)).empty());
}

TEST_CASE("views::interleave refuses weights that are none", "[views][interleave][failure]") {
  const Numbers few{1, 2};
  CHECK_THROWS_WITH(views::interleave({1}, few, few),
                    ContainsSubstring("there are 1 weights and 2 ranges"));
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_WITH(views::interleave({1, weight}, few, few),
                      ContainsSubstring("expected a finite number above 0"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
