#include <tutti/views/examples.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <iterator>
#include <ranges>
#include <sstream>
#include <string>
#include <vector>

#include <range/v3/view/chunk.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/istream.hpp>
#include <range/v3/view/reverse.hpp>
#include <range/v3/view/transform.hpp>

#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>
#include <tutti/views/shuffle.hpp>
#include <tutti/views/take.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using namespace views_test;
using Numbers = std::vector<int>;
using Indexed = views::Examples<int, true>;
using Stream = views::Examples<int, false>;

static_assert(bool(ranges::view_<Indexed>) && bool(ranges::view_<Stream>));
static_assert(bool(ranges::random_access_range<Indexed>) && bool(ranges::sized_range<Indexed>));
static_assert(bool(ranges::forward_range<Stream>) && !bool(ranges::sized_range<Stream>));
static_assert(!bool(ranges::bidirectional_range<Stream>));
static_assert(std::ranges::view<Indexed> && std::ranges::random_access_range<Indexed>);
static_assert(std::ranges::view<Stream> && std::ranges::forward_range<Stream>);
static_assert(views::detail::has_end<decltype(ranges::views::iota(0, 3))>);
static_assert(!views::detail::has_end<decltype(ranges::views::iota(0))>);
static_assert(!views::detail::again_and_again<ranges::istream_view<int>>);

bool odd(int i) {
  return i % 2 == 1;
}

}  // namespace

TEST_CASE("elements with numbers are a random-access range", "[views][examples]") {
  const Numbers numbers{3, 1, 4, 1, 5, 9, 2, 6};
  const auto same = views::detail::examples(numbers);
  CHECK(same.size() == 8);
  CHECK(same.begin()[5] == 9);
  CHECK(*(same.end() - 1) == 6);
  CHECK(same.end() - same.begin() == 8);
  CHECK(same.begin() < same.end());
  auto i = same.begin();
  CHECK(*i++ == 3);
  CHECK(*i == 1);
  CHECK(*--i == 3);
  CHECK(*(2 + i) == 4);
  CHECK(all_of(same) == numbers);
  CHECK(all_of(same | ranges::views::reverse | views::take(3)) == Numbers{6, 2, 9});
}

TEST_CASE("a stream is a forward range: an iterator that stays behind sees what it saw",
          "[views][examples]") {
  const Numbers numbers{3, 1, 4, 1, 5, 9, 2, 6};
  const auto some = numbers | views::filter(odd);
  auto late = some.begin();
  auto early = late;
  CHECK(late == early);
  CHECK(*early == 3);
  ++early;
  ++early;
  CHECK(*early == 1);
  CHECK(*late == 3);
  CHECK(*early++ == 1);
  CHECK(*early == 5);
  ++early;
  ++early;
  CHECK(early == some.end());
  CHECK_THROWS_AS(*early, c10::IndexError);
  CHECK_FALSE(late == some.end());
  CHECK(all_of(some) == Numbers{3, 1, 1, 5, 9});
  CHECK(all_of(some) == Numbers{3, 1, 1, 5, 9});
}

TEST_CASE("each pass of a view of range-v3 is of its own epoch", "[views][examples]") {
  const auto pairs = ranges::views::iota(0, 10) | views::shuffle(4) | ranges::views::chunk(2) |
                     views::map([](auto pair) { return *ranges::begin(pair); });
  const auto numbers = ranges::views::iota(0, 10) | views::shuffle(4);
  for (const std::int64_t epoch : {0, 3, 1}) {
    const Numbers order = all_of(numbers, epoch);
    CHECK(all_of(pairs, epoch) == Numbers{order[0], order[2], order[4], order[6], order[8]});
  }
  CHECK(all_of(numbers, 0) != all_of(numbers, 1));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
