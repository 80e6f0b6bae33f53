#include <tutti/train/thread_choice.hpp>

#include <cstdint>
#include <map>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::train::ThreadChoice;

namespace {

// Steps that take as long as `times` says; returns the counts that they had.
std::vector<int> steps(ThreadChoice& choice, std::int64_t many, std::map<int, double> times) {
  std::vector<int> counts;
  for (std::int64_t i = 0; i < many; ++i) {
    counts.push_back(choice.next());
    choice.took(times[counts.back()]);
  }
  return counts;
}

}  // namespace

TEST_CASE("a trial times windows of each count in turn and takes the fastest", "[train][threads]") {
  ThreadChoice choice({4, 1, 2});
  CHECK(choice.in_question() == std::vector<int>{4, 1, 2});
  CHECK(steps(choice, 12, {{4, 1.0}, {1, 1.4}, {2, 0.8}}) ==
        std::vector<int>{4, 4, 4, 4, 1, 1, 1, 1, 2, 2, 2, 2});
  // 1 takes more than 1.5 times what 2 does, so it is not timed again.
  CHECK(steps(choice, 16, {{4, 1.0}, {2, 0.8}}) ==
        std::vector<int>{4, 4, 4, 4, 2, 2, 2, 2, 4, 4, 4, 4, 2, 2, 2, 2});
  CHECK_FALSE(choice.trying());
  CHECK(choice.chosen() == 2);
  CHECK(choice.in_question() == std::vector<int>{2});
  CHECK(choice.mean(2) == 0.8);
  CHECK(choice.mean(1) == 1.4);
  CHECK(choice.mean(8) == 0);
}

TEST_CASE("took() says when another count has been chosen", "[train][threads]") {
  ThreadChoice choice({2, 1});
  int changes = 0;
  for (int i = 0; i < 100; ++i) {
    changes += choice.took(choice.next() == 1 ? 1 : 4) ? 1 : 0;
  }
  CHECK(changes == 1);
  CHECK(choice.chosen() == 1);
}

TEST_CASE("a count that is a little faster, or was once, is not taken", "[train][threads]") {
  ThreadChoice choice({2, 1});
  steps(choice, 24, {{2, 1.0}, {1, 0.95}});
  CHECK_FALSE(choice.trying());
  CHECK(choice.chosen() == 2);

  ThreadChoice noisy({2, 1});
  for (int i = 0; i < 24; ++i) {  // one step of 1 was very fast, one of 2 very slow
    noisy.took(i == 6 ? 0.01 : i == 2 ? 100 : 1);
  }
  CHECK_FALSE(noisy.trying());
  CHECK(noisy.chosen() == 2);
}

TEST_CASE("long waits count though they are rare", "[train][threads]") {
  ThreadChoice choice({2, 1});
  int steps = 0;
  int waited = 0;
  while (choice.trying()) {  // the median of 2 is less, the mean is not
    const bool waits = choice.next() == 2 && steps % 3 == 1;
    choice.took(waits ? 4 : choice.next() == 2 ? 0.8 : 1);
    ++steps;
    waited += waits ? 1 : 0;
  }
  CHECK(choice.chosen() == 1);
  CHECK(choice.mean(2) > 1.2);
  CHECK(choice.mean(1) == 1);
  CHECK(waited > 4);
}

TEST_CASE("a trial goes on where steps differ too much to tell, but not for ever",
          "[train][threads]") {
  // Steps of 1 to 2 units, those of count 1 a tenth shorter, which is the border of better.
  ThreadChoice choice({2, 1});
  std::uint32_t random = 1;
  int steps = 0;
  for (; choice.trying(); ++steps) {
    random = random * 1664525 + 1013904223;
    choice.took((1 + (random >> 16) / 65536.0) * (choice.next() == 1 ? 0.9 : 1));
  }
  CHECK(steps == 2 * ThreadChoice::window * 16);  // of which 48 of each count are timed

  // A third shorter is told long before.
  ThreadChoice other({2, 1});
  for (steps = 0; other.trying(); ++steps) {
    random = random * 1664525 + 1013904223;
    other.took((1 + (random >> 16) / 65536.0) * (other.next() == 1 ? 0.67 : 1));
  }
  CHECK(steps <= ThreadChoice::window * 16);
  CHECK(other.chosen() == 1);
}

TEST_CASE("windows of short steps last a while, but not those of a hopeless count",
          "[train][threads]") {
  const auto until_decided = [](std::map<int, double> times) {
    ThreadChoice choice({2, 1});
    std::vector<int> windows;  // their steps
    int last = 0;
    while (choice.trying()) {
      const int count = choice.next();
      count == last ? ++windows.back() : (windows.push_back(1), 0);
      last = count;
      choice.took(times[count], times[count] / 100);
    }
    return windows;
  };
  // 15 of 10 ms, and 8 of 20 ms.
  CHECK(until_decided({{2, 1.0}, {1, 1.0}}) == std::vector<int>{15, 15, 15, 15, 15, 15});
  CHECK(until_decided({{2, 1.0}, {1, 1.4}}) == std::vector<int>{15, 11, 15, 11, 15, 11});
  CHECK(until_decided({{2, 1.0}, {1, 2.0}}) == std::vector<int>{15, 4});
  CHECK(until_decided({{2, 2.0}, {1, 1.0}}) == std::vector<int>{8, 15});
}

TEST_CASE("a trial that has cost much is not repeated soon", "[train][threads]") {
  ThreadChoice choice({2, 1});
  steps(choice, 8, {{2, 1.0}, {1, 100.0}});
  REQUIRE_FALSE(choice.trying());
  int many = 0;
  for (; !choice.trying(); ++many) {
    choice.took(1.0);
  }
  // Four steps took 99 longer, which is 5 % of 7920; the watch looks every 32 steps.
  CHECK(many == 7936);
}

TEST_CASE("the first step of a window does not count, since it starts threads",
          "[train][threads]") {
  ThreadChoice choice({2, 1});
  for (int i = 0; i < 24; ++i) {
    choice.took(i % 4 == 0 ? 1000 : choice.next() == 2 ? 2 : 1);
  }
  CHECK(choice.chosen() == 1);
  CHECK(choice.mean(1) == 1);
}

TEST_CASE("steps that become slow start a trial, steps that become fast do not",
          "[train][threads]") {
  ThreadChoice choice({2, 1});
  steps(choice, 24, {{2, 1.0}, {1, 1.2}});
  REQUIRE(choice.chosen() == 2);
  steps(choice, 320, {{2, 1.0}, {1, 1.2}});
  CHECK_FALSE(choice.trying());
  steps(choice, 32, {{2, 0.9}, {1, 1.1}});
  CHECK_FALSE(choice.trying());
  const auto counts = steps(choice, 64, {{2, 4.0}, {1, 1.2}});  // the machine is busy now
  CHECK(counts[31] == 2);
  CHECK(counts[36] == 1);
  CHECK(choice.chosen() == 1);
  CHECK_FALSE(choice.trying());
}

TEST_CASE("time starts a trial as well, and one that changes nothing makes the next wait longer",
          "[train][threads]") {
  ThreadChoice choice({2, 1});
  const std::map<int, double> times{{2, 1.0}, {1, 1.2}};
  const auto until_trial = [&] {
    std::int64_t many = 0;
    while (!choice.trying()) {
      choice.took(times.at(choice.next()));
      ++many;
    }
    return many;
  };
  steps(choice, 24, times);
  const std::int64_t first = until_trial();
  CHECK(first == 2 * ThreadChoice::patience * ThreadChoice::least_rest);
  steps(choice, 24, times);
  CHECK(until_trial() == 2 * first);
  for (int i = 0; i < 5; ++i) {
    steps(choice, 24, times);
    until_trial();
  }
  steps(choice, 24, times);
  CHECK(until_trial() == ThreadChoice::patience * ThreadChoice::most_rest);  // not longer than that

  steps(choice, 8, {{2, 1.0}, {1, 0.5}});  // then one that changes something
  CHECK(choice.chosen() == 1);
  CHECK(until_trial() == ThreadChoice::patience * ThreadChoice::least_rest);
}

TEST_CASE("what is dropped is not tried and not used", "[train][threads]") {
  ThreadChoice choice({4, 1, 2});
  steps(choice, 6, {{4, 1.0}, {1, 0.1}, {2, 0.5}});  // within the window of 1
  choice.drop(1);
  CHECK(choice.in_question() == std::vector<int>{4, 2});
  for (const int count : steps(choice, 24, {{4, 1.0}, {2, 0.5}})) {
    CHECK(count != 1);
  }
  CHECK(choice.chosen() == 2);
  choice.drop(2);
  CHECK(choice.chosen() == 4);
  CHECK_FALSE(choice.has_choice());
  CHECK_FALSE(choice.trying());
  for (const int count : steps(choice, 5000, {{4, 1.0}})) {
    CHECK(count == 4);
  }
  choice.drop(4);  // the first one stays
  CHECK(choice.next() == 4);
}

TEST_CASE("one count alone is no choice", "[train][threads]") {
  ThreadChoice choice({1});
  CHECK_FALSE(choice.has_choice());
  CHECK_FALSE(choice.trying());
  CHECK(steps(choice, 3, {{1, 1.0}}) == std::vector<int>{1, 1, 1});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
