#include <tutti/views/map.hpp>

#include "support/catch.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <range/v3/view/iota.hpp>

#include <tutti/views/filter.hpp>
#include <tutti/views/shard.hpp>
#include <tutti/views/take.hpp>

#include "support/views.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace views_test;
using Catch::Matchers::ContainsSubstring;
using Values = std::vector<double>;

namespace {

const auto numbers = ranges::views::iota(0, 40);

double noisy(int i, tutti::Rng& rng) {
  std::this_thread::sleep_for(std::chrono::microseconds((i * 7) % 11 * 50));
  return i + rng.uniform();
}
bool all(int) {
  return true;
}

}  // namespace

TEST_CASE("views::map gives the same bits with any number of threads", "[views][map][law]") {
  const Values alone = all_of(numbers | views::map(noisy), 3, 8);
  REQUIRE(alone.size() == 40);
  for (const std::int64_t threads : {0, 1, 4}) {
    CHECK(all_of(numbers | views::map(noisy, threads), 3, 8) == alone);
    CHECK(all_of(numbers | views::filter(all) | views::map(noisy, threads), 3, 8) == alone);
  }
  CHECK(all_of(numbers | views::filter(all) | views::map(noisy), 3, 8) == alone);
  CHECK(all_of(numbers | views::map(noisy), 4, 8) != alone);
  CHECK(all_of(numbers | views::map(noisy), 3, 9) != alone);
}

TEST_CASE("two steps with random numbers do not draw the same ones", "[views][map]") {
  const auto draw = [](double, tutti::Rng& rng) { return rng.uniform(); };
  const auto first = numbers | views::map(draw);
  CHECK(all_of(first) != all_of(first | views::map(draw)));
  CHECK(all_of(first) == all_of(first));
}

TEST_CASE("views::map with threads makes only this rank's share, and skips without making",
          "[views][map]") {
  std::mutex mutex;
  std::set<int> made;
  const auto note = [&](int i) {
    const std::lock_guard lock(mutex);
    made.insert(i);
    return i;
  };
  CHECK(all_of(numbers | views::map(note, 3) | views::shard(), 0, 0, 1, 4) ==
        std::vector<int>{1, 5, 9, 13, 17, 21, 25, 29, 33, 37});
  CHECK(made == std::set<int>{1, 5, 9, 13, 17, 21, 25, 29, 33, 37});
  made.clear();
  tutti::detail::Pass pass;
  const auto flow = (numbers | views::map(note, 2)).open(pass);
  CHECK(flow->size() == 40);
  CHECK(flow->skip(35) == 35);
  CHECK(flow->next() == 35);
  CHECK(flow->skip(2) == 2);
  CHECK(flow->next() == 38);
  CHECK(flow->skip(9) == 1);
  CHECK_FALSE(flow->next());
  CHECK(flow->reads() == 0);
  CHECK(*made.begin() == 35);
  const auto stream = (numbers | views::filter(all) | views::map(note, 2)).open(pass);
  CHECK(stream->next() == 0);
  CHECK(stream->skip(1) == 1);
  CHECK(stream->skip(20) == 20);
  CHECK(stream->next() == 22);
  CHECK(stream->skip(30) == 17);
  CHECK_FALSE(stream->next());
  CHECK(stream->reader() == "filter");
}

TEST_CASE("views::map says which element fails, in its turn, and goes on",
          "[views][map][failure]") {
  const auto fail = [](int i) { return i == 5 ? throw std::runtime_error("no luck") : i; };
  const auto refuse = [](int i) { return i == 5 ? throw std::runtime_error("no luck") : true; };
  const auto same = [](int i) { return i; };
  const auto check = [](const auto& step, const std::string& name) {
    tutti::detail::Pass pass;
    const auto flow = views::detail::in_turn(step.open(pass));
    for (int i = 0; i < 5; ++i) {
      REQUIRE(flow->next() == i);
    }
    try {
      (void)flow->next();
      FAIL("element 5 was had");
    } catch (const c10::Error& error) {
      CHECK_THAT(error.what(), ContainsSubstring(name + " 5 cannot be had: no luck"));
      CHECK_THROWS_WITH(std::rethrow_if_nested(error), "no luck");
    }
  };
  for (const std::int64_t threads : {0, 1, 4}) {
    const auto step = numbers | views::map(fail, threads);
    check(step, "views::map: element");
    check(numbers | views::filter(all) | views::map(fail, threads), "views::map: element");
    check(numbers | views::filter(refuse) | views::map(same, threads),
          "views::filter: the answer to element");
    tutti::detail::Pass pass;
    const auto flow = step.open(pass);
    CHECK(flow->skip(5) == 5);
    CHECK_THROWS(flow->next());
    CHECK(flow->next() == 6);
  }
  check(numbers | views::map(fail), "views::map: element");
  CHECK_THROWS_WITH(views::map(fail, -1), ContainsSubstring("threads is -1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
