#include <tutti/core/interval.hpp>

#include "support/catch.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

using Trace = std::vector<std::string>;

struct Run {
  Time max_duration = "2ep";
  std::int64_t loader = 4;
  std::int64_t samples = 8;  // in a batch
  Timestamp::Duration seconds = 1s;
  bool sized = true;
};

// Walks through a run as the loop does and lists "event@batch" wherever the interval was due.
Trace trace(Interval interval, const Run& run) {
  Trace out;
  Progress p{.max_duration = run.max_duration, .dataloader_len = run.sized ? run.loader : -1};
  const auto fire = [&]<class E>(E event) {
    const bool expected = interval.due(event, p);
    const bool due = interval(event, p);
    CHECK(due == expected);
    if (due) {
      out.push_back(std::string(E::name) + "@" + std::to_string(p.timestamp.batch));
    }
  };
  const auto advance = [&](Timestamp next) {
    p.previous_timestamp = p.timestamp;
    p.timestamp = next;
  };
  fire(FitStart{});
  while (p.timestamp < p.max_duration) {
    for (std::int64_t i = 0; i < run.loader && p.timestamp < p.max_duration; ++i) {
      fire(BatchStart{});
      advance(p.timestamp.to_next_batch(run.samples, 32 * run.samples, run.seconds));
      fire(BatchEnd{});
      fire(BatchCheckpoint{});
    }
    if (p.timestamp.batch_in_epoch == run.loader) {
      advance(p.timestamp.to_next_epoch());
      fire(EpochEnd{});
      fire(EpochCheckpoint{});
    }
  }
  advance(p.timestamp.to_next_iteration());
  fire(IterationEnd{});
  fire(IterationCheckpoint{});
  fire(FitEnd{});
  return out;
}

constexpr auto none = IntervalEnd::none;

}  // namespace

TEST_CASE("an interval in batches is due after every so many", "[interval][trace]") {
  CHECK(trace({.every = "3ba", .at_end = none}, {}) ==
        Trace{"batch_checkpoint@3", "batch_checkpoint@6"});
  CHECK(trace({.every = "3ba", .at_end = none, .checkpoint_events = false}, {}) ==
        Trace{"batch_end@3", "batch_end@6"});
}

TEST_CASE("an interval in epochs or iterations is due at its own events", "[interval][trace]") {
  CHECK(trace({.every = 1, .at_end = none}, {}) ==
        Trace{"epoch_checkpoint@4", "epoch_checkpoint@8"});
  CHECK(trace({.every = "2ep", .at_end = none, .checkpoint_events = false}, {}) ==
        Trace{"epoch_end@8"});
  CHECK(trace({.every = "1iter", .at_end = none}, {}) == Trace{"iteration_checkpoint@8"});
  CHECK(trace({.every = "1iter", .at_end = none, .checkpoint_events = false}, {}) ==
        Trace{"iteration_end@8"});
}

TEST_CASE("a batch that jumps over several multiples is due once", "[interval][trace]") {
  // 8 samples a batch: 20 is crossed by batches 3, 5 and 8.
  CHECK(trace({.every = "20sp", .at_end = none}, {}) ==
        Trace{"batch_checkpoint@3", "batch_checkpoint@5", "batch_checkpoint@8"});
  CHECK(trace({.every = "100tok", .at_end = none}, {.max_duration = "3ba"}) ==
        Trace{"batch_checkpoint@1", "batch_checkpoint@2", "batch_checkpoint@3"});
  CHECK(trace({.every = "3s", .at_end = none}, {}) ==
        Trace{"batch_checkpoint@3", "batch_checkpoint@6"});
}

TEST_CASE("the end of training is due unless the interval was due on that batch",
          "[interval][trace]") {
  CHECK(trace({.every = "3ba"}, {}) ==
        Trace{"batch_checkpoint@3", "batch_checkpoint@6", "epoch_checkpoint@8"});
  CHECK(trace({.every = "3ba"}, {.max_duration = "7ba"}) ==
        Trace{"batch_checkpoint@3", "batch_checkpoint@6", "batch_checkpoint@7"});
  CHECK(trace({.every = "3ba"}, {.max_duration = "8ba"}) ==  // twice: the caller remembers
        Trace{"batch_checkpoint@3", "batch_checkpoint@6", "batch_checkpoint@8",
              "epoch_checkpoint@8"});
  CHECK(trace({.every = "4ba"}, {}) == Trace{"batch_checkpoint@4", "batch_checkpoint@8"});
  CHECK(trace({.every = "1000ba"}, {}) == Trace{"epoch_checkpoint@8"});
}

TEST_CASE("an evaluation is due once at the end unless it just was", "[interval][trace]") {
  const Interval epochs{.every = 1, .at_end = IntervalEnd::fit_end, .checkpoint_events = false};
  CHECK(trace(epochs, {}) == Trace{"epoch_end@4", "epoch_end@8"});
  CHECK(trace(epochs, {.max_duration = "6ba"}) == Trace{"epoch_end@4", "fit_end@6"});
}

TEST_CASE("a dur is rounded up to whole batches of a run counted in epochs", "[interval][trace]") {
  CHECK(trace({.every = "0.3dur", .at_end = none}, {}) ==  // ceil(0.3 * 8) = 3
        Trace{"batch_checkpoint@3", "batch_checkpoint@6"});
  CHECK(trace({.every = "0.25dur", .at_end = none}, {.max_duration = "6ba"}) ==  // ceil(1.5) = 2
        Trace{"batch_checkpoint@2", "batch_checkpoint@4", "batch_checkpoint@6"});
  CHECK(trace({.every = "0.5dur", .at_end = none}, {.max_duration = "50sp"}) ==  // 25 samples
        Trace{"batch_checkpoint@4", "batch_checkpoint@7"});
  CHECK(trace({.every = "0.5dur", .at_end = none}, {.max_duration = "6sec"}) ==
        Trace{"batch_checkpoint@3", "batch_checkpoint@6"});
}

TEST_CASE("a dur needs to know how long the run is", "[interval][error]") {
  Interval interval{.every = "0.5dur"};
  Progress p{.timestamp = {.batch = 1}, .max_duration = "2ep"};
  CHECK_FALSE(interval(BatchCheckpoint{}, p));  // before any batch
  p.previous_timestamp = Timestamp{};
  CHECK_THROWS_WITH(interval(BatchCheckpoint{}, p), ContainsSubstring("whose length is known"));
  p.max_duration = {};
  CHECK_THROWS_WITH(interval(BatchCheckpoint{}, p), ContainsSubstring("needs a max_duration"));
  p.max_duration = "10ba";
  CHECK_FALSE(interval(BatchCheckpoint{}, p));
}

TEST_CASE("an interval of zero or less is never due, not even at the end", "[interval][law]") {
  for (const Time every : {"0ep"_t, "0dur"_t, "0ba"_t, "-1ba"_t, Time{}}) {
    INFO(to_string(every));
    CHECK(trace({.every = every}, {}).empty());
    CHECK(trace({.every = every, .at_end = IntervalEnd::fit_end}, {}).empty());
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
