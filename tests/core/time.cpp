#include <tutti/core/time.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

static_assert(Timestamp{}.to_next_batch(8, 32).get(TimeUnit::sample) == "8sp");
static_assert(Timestamp{}.to_next_batch() == "1ba" && Timestamp{} < "1ep");

TEST_CASE("a batch advances its counters and clocks and clears none", "[time][law]") {
  const Timestamp first = Timestamp{}.to_next_batch(8, 32, 1500ms);
  const Timestamp second = first.to_next_batch(4, 16, 500ms);
  Timestamp expected;
  expected.batch = expected.batch_in_epoch = 2;
  expected.sample = expected.sample_in_epoch = 12;
  expected.token = expected.token_in_epoch = expected.token_in_iteration = 48;
  expected.total_wct = expected.iteration_wct = expected.epoch_wct = 2s;
  expected.batch_wct = 500ms;
  CHECK(second == expected);
  CHECK(first.batch == 1);
}

TEST_CASE("an epoch clears what is counted within an epoch", "[time][law]") {
  const Timestamp next = Timestamp{}.to_next_batch(8, 32, 1s).to_next_epoch();
  Timestamp expected;
  expected.epoch = expected.epoch_in_iteration = 1;
  expected.batch = 1;
  expected.sample = 8;
  expected.token = expected.token_in_iteration = 32;
  expected.total_wct = expected.iteration_wct = 1s;
  CHECK(next == expected);
}

TEST_CASE("an iteration clears what is counted within an iteration or an epoch", "[time][law]") {
  const Timestamp next = Timestamp{}
                             .to_next_batch(8, 32, 1s)
                             .to_next_epoch()
                             .to_next_batch(8, 32, 1s)
                             .to_next_iteration();
  Timestamp expected;
  expected.iteration = expected.epoch = 1;
  expected.batch = 2;
  expected.sample = 16;
  expected.token = 64;
  expected.total_wct = 2s;
  CHECK(next == expected);
}

TEST_CASE("a timestamp is compared through the counter of the other side's unit", "[time][law]") {
  Timestamp t;
  t.iteration = 1;
  t.epoch = 2;
  t.batch = 3;
  t.sample = 4;
  t.token = 5;
  t.total_wct = 6900ms;
  CHECK(t.get(TimeUnit::iteration) == "1iter"_t);
  CHECK((t == "2ep" && t < "4ba" && t >= "4sp" && t != "4tok" && "5sec" < t && t <= "6sec"));
  CHECK(t == 2);  // a plain number is epochs
  CHECK_THROWS_WITH(t < "1dur", ContainsSubstring("no counter for dur"));
}

TEST_CASE("elapsed is counted in max_duration's own unit", "[time][law]") {
  Progress p{.timestamp = {.epoch = 1, .batch = 15, .batch_in_epoch = 5},
             .max_duration = "2ep",
             .dataloader_len = 10};
  CHECK(p.elapsed() == "0.5dur"_t);
  p.max_duration = "60ba";
  CHECK(p.elapsed() == "0.25dur"_t);
  p.max_duration = {};
  CHECK(!p.elapsed());
  CHECK(!p.elapsed_fraction());
}

TEST_CASE("the elapsed fraction moves with every batch when the loader's length is known",
          "[time][law]") {
  Progress p{.max_duration = "2ep", .dataloader_len = 4};
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t batch = 0; batch < 4; ++batch) {
      CHECK(*p.elapsed_fraction() == static_cast<double>(4 * epoch + batch) / 8.0);
      p.timestamp = p.timestamp.to_next_batch();
    }
    CHECK(*p.elapsed_fraction() == static_cast<double>(epoch + 1) / 2.0);
    p.timestamp = p.timestamp.to_next_epoch();
  }
  CHECK(*p.elapsed_fraction() == 1.0);
  p.dataloader_len = -1;
  p.timestamp = {.epoch = 1, .batch = 6, .batch_in_epoch = 2};
  CHECK(*p.elapsed_fraction() == 0.5);
  p.max_duration = "10sec";
  p.timestamp.total_wct = 2500ms;
  CHECK(*p.elapsed_fraction() == 0.25);
  CHECK(p.elapsed() == "0.2dur"_t);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
