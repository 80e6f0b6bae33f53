#include <tutti/optim/warmup.hpp>

#include "optim/progress.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/optim/schedule.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(CosineAnnealingWithWarmup{.t_warmup = "1ep"}.t_max == Time::duration(1));

namespace {

// Known values: 1000 batches an epoch, 1000 epochs times the ratio.
std::vector<Row> rows() {
  const MultiStepWithWarmup steps{.t_warmup = "10ba", .milestones = {"2ep", "4ep"}, .gamma = 0.5};
  MultiStepWithWarmup scaled = steps;
  scaled.scale_warmup = true;
  return {
      {"MultiStepWithWarmup", steps, 0.5, {0, 5, 15, 1500, 2500}, {0, 0.5, 1, 0.5, 0.25}},
      {"MultiStepWithWarmup scaled", scaled, 0.5, {0, 5, 15, 1500, 2500}, {0, 1, 1, 0.5, 0.25}},
      {"ConstantWithWarmup",
       ConstantWithWarmup{.t_warmup = "10ba", .alpha = 3},
       1,
       {0, 5, 10, 1000000, 2000000},
       {0, 1.5, 3, 3, 3}},
      {"LinearWithWarmup",
       LinearWithWarmup{"500ep", 3, 2, "1002ep"},
       0.5,
       {0, 250000, 500000, 500500, 501000, 502000},
       {0, 1.5, 3, 2.5, 2, 2}},
      {"LinearWithWarmup scaled",
       LinearWithWarmup{.t_warmup = "500ba", .scale_warmup = true},
       0.5,
       {0, 125, 250, 250250},
       {0, 0.5, 1, 0.5}},
      {"CosineAnnealingWithWarmup",
       CosineAnnealingWithWarmup{.t_warmup = "0.9dur", .alpha_f = 0.5},
       0.01,
       {0, 4500, 9000, 9500, 10000, 11000},
       {0, 0.5, 1, 0.75, 0.5, 0.5}},
      {"PolynomialWithWarmup",
       PolynomialWithWarmup{.t_warmup = "0.9dur"},
       1,
       {450000, 900000, 950000, 1000000, 1100000},
       {0.5, 1, 0.25, 0, 0}},
  };
}

// All five with a warmup of `t_warmup` to 1, and at their peak for the first batch after it.
std::vector<Schedule> all(Time t_warmup, bool scale = false) {
  return {MultiStepWithWarmup{.t_warmup = t_warmup, .milestones = {}, .scale_warmup = scale},
          ConstantWithWarmup{.t_warmup = t_warmup, .scale_warmup = scale},
          LinearWithWarmup{.t_warmup = t_warmup, .scale_warmup = scale},
          CosineAnnealingWithWarmup{.t_warmup = t_warmup, .scale_warmup = scale},
          PolynomialWithWarmup{.t_warmup = t_warmup, .scale_warmup = scale}};
}

}  // namespace

TEST_CASE("schedules with a warmup give their known values at known batches", "[optim][schedule]") {
  check_values(rows());
}

TEST_CASE("every warmup rises along a line from 0, in whatever unit it is given",
          "[optim][schedule][law]") {
  for (const Time t_warmup : {Time("20ba"), Time("2ep"), Time("0.5dur")}) {
    for (const Schedule& schedule : all(t_warmup)) {
      for (std::int64_t batch = 0; batch <= 20; ++batch) {
        CHECK(schedule(progress_at(batch, "4ep", 10)) ==
              Approx(static_cast<double>(batch) / 20).margin(1e-12));
      }
    }
  }
}

TEST_CASE("a stretched ramp is left at the unscaled time, a squeezed one waits at its peak",
          "[optim][schedule]") {
  for (const Schedule& schedule : all("10ba", true)) {
    CHECK(schedule(progress_at(9, "8ep", 10), 2.0) == Approx(0.45));
    CHECK(schedule(progress_at(10, "8ep", 10), 2.0) == 1.0);
    CHECK(schedule(progress_at(4, "2ep", 10), 0.5) == Approx(0.8));
    CHECK(schedule(progress_at(5, "2ep", 10), 0.5) == 1.0);
    CHECK(schedule(progress_at(9, "2ep", 10), 0.5) == 1.0);
    CHECK(schedule(progress_at(0, "2ep", 10), 0.01) == 1.0);  // squeezed to nothing
  }
  for (const Schedule& schedule : all("10ba")) {
    CHECK(schedule(progress_at(5, "8ep", 10), 2.0) == Approx(0.5));
    CHECK(schedule(progress_at(5, "2ep", 10), 0.5) == Approx(0.5));
  }
}

TEST_CASE("milestones behind the warmup count from the start of the run", "[optim][schedule]") {
  const MultiStepWithWarmup schedule{.t_warmup = "10ba", .milestones = {"80sp", "5ba"}};
  CHECK(schedule(progress_at(8, "4ep", 10)) == Approx(0.8));  // one in the warmup waits for its end
  CHECK(schedule(progress_at(10, "4ep", 10)) == 0.1);
  CHECK(schedule(progress_at(20, "4ep", 10)) == Approx(0.01));
}

TEST_CASE("a warmup as long as the run is all there is", "[optim][schedule]") {
  for (const Schedule& schedule : all("1dur")) {
    CHECK(schedule(progress_at(39, "4ep", 10)) == Approx(39.0 / 40));
    CHECK(schedule(progress_at(40, "4ep", 10)) == 1.0);
    CHECK(schedule(progress_at(41, "4ep", 10)) == 1.0);
  }
}

TEST_CASE("a warmup that does not fit the schedule or the run is refused",
          "[optim][schedule][error]") {
  CHECK_THROWS_WITH(
      (LinearWithWarmup{.t_warmup = "5ba", .t_max = "20ba"}(progress_at(0, "4ep", 10))),
      ContainsSubstring("LinearWithWarmup ends at t_max = 20ba, before the run") &&
          ContainsSubstring("4ep"));
  CHECK_THROWS_WITH(
      (CosineAnnealingWithWarmup{.t_warmup = "5ba", .t_max = "160sp"}(progress_at(0, "4ep"))),
      ContainsSubstring("CosineAnnealingWithWarmup cannot compare its t_warmup, 5ba, with its "
                        "t_max, 160sp; give both in the same unit"));
  CHECK_THROWS_WITH((LinearWithWarmup{.t_warmup = "2ep"}(progress_at(0, "3sec", 23))),
                    ContainsSubstring("cannot compare its t_warmup, 2ep, with its t_max, 1.0dur of "
                                      "a run of 3sec; give both"));
  CHECK_THROWS_WITH(
      (PolynomialWithWarmup{.t_warmup = "5ba", .t_max = "1ep"}(progress_at(0, "20ba", 10))),
      ContainsSubstring("ends at t_max = 1ep, before the run does at 20ba"));
  CHECK_THROWS_WITH(
      (ConstantWithWarmup{.t_warmup = "5ba", .t_max = "1ep"}(progress_at(0, "20ba", 10))),
      ContainsSubstring("ConstantWithWarmup"));
  CHECK_THROWS_AS(
      (ConstantWithWarmup{.t_warmup = "5ba", .t_max = "1ep"}(progress_at(50, "20ba", 10))),
      std::invalid_argument);
  CHECK_NOTHROW((LinearWithWarmup{.t_warmup = "5ba", .t_max = "4ep"}(progress_at(0, "4ep", 10))));
  CHECK_NOTHROW(
      (LinearWithWarmup{.t_warmup = "5ba", .t_max = "2ep"}(progress_at(0, "4ep", 10), 2.0)));
}

TEST_CASE("a warmup in seconds and a power of 0 are refused from the first batch on",
          "[optim][schedule][error]") {
  for (const Schedule& schedule : all("10sec")) {
    CHECK_THROWS_WITH(schedule(progress_at(0, "4ep")), ContainsSubstring("10sec is in seconds"));
  }
  CHECK_THROWS_WITH(
      (PolynomialWithWarmup{.t_warmup = "5ba", .power = 0}(progress_at(0, "4ep", 10))),
      ContainsSubstring("PolynomialWithWarmup's power is 0") &&
          ContainsSubstring("greater than 0"));
}

TEST_CASE("a warmup that vanishes is noticed once the run is known", "[optim][schedule]") {
  const char* names[] = {"MultiStepWithWarmup", "ConstantWithWarmup", "LinearWithWarmup",
                         "CosineAnnealingWithWarmup", "PolynomialWithWarmup"};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    const Schedule s = all("0.001dur")[i];
    CHECK_THAT(s.notice(progress_at(0, "4ep", 10)),
               ContainsSubstring(std::string(names[i]) + "'s t_warmup of 0.001dur is 0ba") &&
                   ContainsSubstring("there is no warmup"));
    CHECK(s.notice(progress_at(0, "4ep", 1000)).empty());
    CHECK(s(progress_at(0, "4ep", 10)) == 1.0);
    // A short run squeezes the ramp away, unless the ramp stays as long as it is.
    CHECK_THAT(all("4ba", true)[i].notice(progress_at(0, "4ep", 10), 0.1),
               ContainsSubstring(std::string(names[i]) + "'s t_warmup of 4ba is 0ba"));
    CHECK(all("4ba", true)[i].notice(progress_at(0, "4ep", 10), 0.5).empty());
    CHECK(all("4ba")[i].notice(progress_at(0, "4ep", 10), 0.1).empty());
    CHECK_THAT(all("-5ba")[i].notice(progress_at(0, "4ep", 10)), ContainsSubstring("is -5ba"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
