#include <tutti/optim/annealing.hpp>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

bool is_near(double a, double b) {
  return std::abs(a - b) < 1e-12;
}

// Batch `batch` of a run of two epochs of 10.
Progress at_batch(std::int64_t batch) {
  Progress progress{.max_duration = "20ba", .dataloader_len = 10};
  progress.timestamp.batch = batch;
  progress.timestamp.epoch = batch / 10;
  return progress;
}

}  // namespace

TEST_CASE("a schedule between two values begins at one, ends at the other and stays there",
          "[optim][schedule][law]") {
  const auto check = [](const auto& schedule, double first, double last) {
    CHECK(is_near(schedule(at_batch(0)), first));
    for (const std::int64_t batch : {10, 11, 20, 500}) {
      CHECK(is_near(schedule(at_batch(batch)), last));
    }
    double before = first;
    for (std::int64_t batch = 1; batch < 10; ++batch) {  // towards the end, batch by batch
      const double now = schedule(at_batch(batch));
      CHECK((last - first) * (now - before) > 0);
      before = now;
    }
  };
  for (const Time t_max : {Time("10ba"), Time("1ep"), Time("0.5dur")}) {
    check(Linear{.alpha_i = 0.25, .alpha_f = 2, .t_max = t_max}, 0.25, 2);
    check(CosineAnnealing{.t_max = t_max, .alpha_f = 0.1}, 1, 0.1);
    check(Polynomial{.power = 3, .t_max = t_max, .alpha_f = 0.1}, 1, 0.1);
  }
}

TEST_CASE("half way the curves are where their formulas say", "[optim][schedule]") {
  CHECK(is_near(Linear{}(at_batch(10)), 0.5));
  CHECK(is_near(CosineAnnealing{.alpha_f = 0.2}(at_batch(10)), 0.6));
  CHECK(is_near(Polynomial{.power = 2}(at_batch(10)), 0.25));
  CHECK(Constant{.alpha = 0.3, .t_max = "5ba"}(at_batch(4)) == 0.3);
  CHECK(Constant{.alpha = 0.3, .t_max = "5ba"}(at_batch(5)) == 1.0);
}

TEST_CASE("warm restarts begin again, each time in longer", "[optim][schedule]") {
  const CosineAnnealingWarmRestarts schedule{.t_0 = "4ba", .t_mult = 2};
  for (const std::int64_t start : {0, 4, 12}) {
    CHECK(is_near(schedule(at_batch(start)), 1));
  }
  CHECK(is_near(schedule(at_batch(2)), 0.5));
  CHECK(is_near(schedule(at_batch(8)), 0.5));
  CHECK(schedule(at_batch(3)) < 0.2);
  CHECK_THROWS_WITH((CosineAnnealingWarmRestarts{.t_0 = "4ba", .t_mult = 0.5})(at_batch(0)),
                    ContainsSubstring("shrink to nothing"));
  // Periods of 4, 2 and 1 batches.
  const CosineAnnealingWarmRestarts shrinking{.t_0 = "4ba", .t_mult = 0.5};
  Progress run{.max_duration = "7ba"};
  for (const auto& [batch, value] : std::vector<std::pair<int, double>>{{0, 1}, {5, 0.5}, {6, 1}}) {
    run.timestamp.batch = batch;
    CHECK(is_near(shrinking(run), value));
  }
  CHECK_THROWS_WITH(shrinking(Progress{.max_duration = "8ba"}), ContainsSubstring("shrink to"));
  CHECK_THROWS_WITH(Polynomial{}(at_batch(0)), ContainsSubstring("Polynomial's power"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
