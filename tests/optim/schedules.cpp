#include <tutti/optim/schedules.hpp>

#include "optim/progress.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;

namespace {

// Known values: 1000 batches an epoch, 1000 epochs times the ratio.
std::vector<Row> rows() {
  return {
      {"Linear", Linear{0, 1, "0.25dur"}, 2, {100000, 200000, 400000}, {0.2, 0.4, 0.8}},
      {"CosineAnnealing",
       CosineAnnealing{"30ba", 0.5},
       0.2,
       {0, 2, 3, 4, 6, 10},
       {1, 0.875, 0.75, 0.625, 0.5, 0.5}},
      {"CosineAnnealingWarmRestarts",
       CosineAnnealingWarmRestarts{"0.003dur", 1.5},
       1,
       {0, 1000, 3000, 4500, 7500, 14250},
       {1, 0.75, 1, 0.75, 1, 1}},
      {"Polynomial", Polynomial{2, "100ba", 0.5}, 0.5, {0, 10, 20, 50}, {1, 0.82, 0.68, 0.5}},
  };
}

}  // namespace

TEST_CASE("schedules give their known values at known batches", "[optim][schedule]") {
  check_values(rows());
}

TEST_CASE("a schedule scaled by s at time s*t is the schedule at time t",
          "[optim][schedule][law]") {
  const std::vector<Schedule> all{Step{"20ba"},
                                  MultiStep{.milestones = {"10ba", "2ep", "0.5dur"}, .gamma = 0.3},
                                  Constant{0.4, "1ep"},
                                  Linear{.t_max = "3ep"},
                                  Exponential{0.9},
                                  CosineAnnealing{"2ep"},
                                  CosineAnnealingWarmRestarts{"10ba", 2.0},
                                  Polynomial{2, "80ba"},
                                  Cyclic{.alpha_i = 0.1, .step_size_up = "15ba"},
                                  MultiStepWithWarmup{.t_warmup = "0ba", .milestones = {"20ba"}},
                                  CosineAnnealingWithWarmup{.t_warmup = "0.1dur", .alpha_f = 0.1}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::int64_t batch = 0; batch <= 100; ++batch) {
      INFO("schedule " << i << " at batch " << batch);
      CHECK(all[i](progress_at(3 * batch, "30ep", 10), 3.0) ==
            Approx(all[i](progress_at(batch, "10ep", 10))).margin(1e-12));
    }
  }
}

TEST_CASE("warm restarts of equal length need no loop over the past ones",
          "[optim][schedule][law]") {
  const CosineAnnealingWarmRestarts s{.t_0 = "3ba"};
  const std::int64_t far = 3'000'000'000'000'000;
  CHECK(s(progress_at(far, "1ep")) == 1.0);
  CHECK(s(progress_at(far + 1, "1ep")) == Approx(0.75));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
