#include <tutti/views/window.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/views/filter.hpp>
#include <tutti/views/map.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Windows = std::vector<std::vector<int>>;

TEST_CASE("views::window gives neighbours, with numbers and in a stream alike",
          "[views][window][law]") {
  for (int n = 0; n < 12; ++n) {
    for (int length = 1; length < 5; ++length) {
      for (int stride = 1; stride < 7; ++stride) {
        INFO(n << ", " << length << ", " << stride);
        const auto numbers = ranges::views::iota(0, n);
        Windows expected;
        for (int from = 0; from + length <= n; from += stride) {
          std::vector<int>& window = expected.emplace_back();
          for (int i = 0; i < length; ++i) {
            window.push_back(from + i);
          }
        }
        const auto step = views::window(length, stride);
        CHECK(all_of(numbers | step) == expected);
        CHECK((numbers | step).size() == expected.size());
        const auto sized = numbers | views::map([](int i) { return i; }, 0) | step;
        const auto stream = numbers | views::filter([](int) { return true; }) | step;
        CHECK(all_of(sized) == expected);
        CHECK(all_of(stream) == expected);
        for (std::int64_t gone = 0; gone <= std::ssize(expected); ++gone) {
          for (const auto& each : {sized, stream}) {
            tutti::detail::Pass pass;
            const auto flow = each.open(pass);
            CHECK(flow->skip(gone) == gone);
            CHECK(flow->next() == (gone < std::ssize(expected)
                                       ? std::optional(expected[static_cast<std::size_t>(gone)])
                                       : std::nullopt));
            CHECK(flow->skip(99) == std::max<std::int64_t>(std::ssize(expected) - gone - 1, 0));
          }
        }
      }
    }
  }
}

TEST_CASE("views::window has windows side by side unless told otherwise", "[views][window]") {
  const auto numbers = ranges::views::iota(0, 7);
  CHECK(all_of(numbers | views::window(3)) == Windows{{0, 1, 2}, {3, 4, 5}});
  CHECK_THROWS_WITH(views::window(0), ContainsSubstring("length is 0, expected 1 or more"));
  CHECK_THROWS_WITH(views::window(1, -1), ContainsSubstring("stride is -1, expected 0 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
