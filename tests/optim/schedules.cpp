#include <tutti/optim/schedules.hpp>

#include "support/catch.hpp"

#include <string>
#include <vector>

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

// A schedule is a constant: no heap, no state.
constexpr MultiStep milestones{.milestones = {"10ba", "2ep", "0.5dur"}, .gamma = 0.3};
static_assert(milestones.milestones.size() == 3 && milestones.milestones[1] == Time::epochs(2));
static_assert(CosineAnnealingWithWarmup{.t_warmup = "1ep"}.t_max == Time::duration(1));
static_assert(ScalableSchedule<CosineAnnealing> && !LearningRateSchedule<int>);

namespace {

Progress progress_at(std::int64_t batch, Time max_duration, std::int64_t loader = 1000) {
  Progress p{.max_duration = max_duration, .dataloader_len = loader};
  p.timestamp.batch = batch;
  p.timestamp.epoch = batch / loader;
  p.timestamp.batch_in_epoch = batch % loader;
  p.timestamp.sample = 4 * batch;
  p.timestamp.token = 32 * batch;
  return p;
}

struct Row {
  std::string name;
  Schedule schedule;
  double ssr;
  std::vector<std::int64_t> batches;
  std::vector<double> alphas;
};

// Known values: 1000 batches an epoch, 1000 epochs times the ratio.
std::vector<Row> rows() {
  const MultiStepWithWarmup steps{.t_warmup = "10ba", .milestones = {"2ep", "4ep"}, .gamma = 0.5};
  MultiStepWithWarmup scaled = steps;
  scaled.scale_warmup = true;
  return {
      {"Step in batches", Step{"10ba"}, 1, {5, 15, 35}, {1, 0.1, 0.001}},
      {"Step in dur", Step{"0.002dur", 0.8}, 1, {1000, 3000, 7000}, {1, 0.8, 0.512}},
      {"MultiStep",
       MultiStep{{"100ba", "1ep", "0.01dur"}, 0.5},
       4,
       {200, 2000, 20000, 200000},
       {1, 0.5, 0.25, 0.125}},
      {"Linear", Linear{0, 1, "0.25dur"}, 2, {100000, 200000, 400000}, {0.2, 0.4, 0.8}},
      {"Exponential", Exponential{0.5}, 2, {2000, 4000, 8000}, {0.5, 0.25, 0.0625}},
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
      {"MultiStepWithWarmup", steps, 0.5, {0, 5, 15, 1500, 2500}, {0, 0.5, 1, 0.5, 0.25}},
      {"MultiStepWithWarmup scaled", scaled, 0.5, {0, 5, 15, 1500, 2500}, {0, 1, 1, 0.5, 0.25}},
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
       {0, 4500, 9000, 9500, 10000},
       {0, 0.5, 1, 0.75, 0.5}},
      {"PolynomialWithWarmup",
       PolynomialWithWarmup{.t_warmup = "0.9dur"},
       1,
       {450000, 900000, 950000, 1000000},
       {0.5, 1, 0.25, 0}},
  };
}

}  // namespace

TEST_CASE("schedules give their known values at known batches", "[optim][schedule]") {
  for (const Row& row : rows()) {
    for (std::size_t i = 0; i < row.batches.size(); ++i) {
      INFO(row.name << " at batch " << row.batches[i]);
      const Progress p = progress_at(row.batches[i], "1000ep"_t * row.ssr);
      CHECK(row.schedule(p, row.ssr) == Approx(row.alphas[i]).margin(1e-12));
    }
  }
}

TEST_CASE("a schedule scaled by s at time s*t is the schedule at time t",
          "[optim][schedule][law]") {
  const std::vector<Schedule> all{Step{"20ba"},
                                  milestones,
                                  Constant{0.4, "1ep"},
                                  Linear{.t_max = "3ep"},
                                  Exponential{0.9},
                                  CosineAnnealing{"2ep"},
                                  CosineAnnealingWarmRestarts{"10ba", 2.0},
                                  Polynomial{2, "80ba"},
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

TEST_CASE("a product multiplies its schedules and scales both", "[optim][schedule][law]") {
  const Product both{Linear{.t_max = "100ba"}, Step{.step_size = "50ba", .gamma = 0.5}};
  CHECK(both(progress_at(50, "1ep")) == Approx(0.25));
  CHECK(both(progress_at(100, "1ep"), 2.0) == Approx(0.25));
}

TEST_CASE("any function of the progress is a schedule", "[optim][schedule]") {
  const Schedule one = [](const Progress& p) { return p.timestamp < "3ba" ? 1.0 : 0.1; };
  CHECK(one(progress_at(2, "1ep")) == 1.0);
  CHECK(one(progress_at(3, "1ep")) == 0.1);
  CHECK_THROWS_WITH(one(progress_at(3, "1ep"), 0.5), ContainsSubstring("cannot be scaled"));

  const Schedule two = [](const Progress&, double ssr) { return ssr; };
  CHECK(two(progress_at(0, "1ep"), 0.5) == 0.5);

  const Schedule none;
  CHECK(!none);
  CHECK(none(progress_at(0, "1ep")) == 1.0);
  CHECK(one);
}

TEST_CASE("times that a schedule cannot use are refused with the reason",
          "[optim][schedule][error]") {
  const Progress unsized{.max_duration = "3ep"};
  CHECK_THROWS_WITH(Step{"1ep"}(unsized), ContainsSubstring("1ep needs a dataloader whose length"));
  CHECK_THROWS_WITH(Step{"0.1dur"}(unsized), ContainsSubstring("dataloader whose length"));
  CHECK_NOTHROW(Step{"1ba"}(unsized));
  CHECK_THROWS_WITH(Step{"0.1dur"}(Progress{}), ContainsSubstring("needs a max_duration"));
  CHECK_THROWS_WITH(Step{"10sec"}(progress_at(1, "1ep")), ContainsSubstring("10sec is in seconds"));
  CHECK_THROWS_WITH(Step{"1e-9dur"}(progress_at(1, "1ep")),
                    ContainsSubstring("Step's step_size is 0ba"));
  CHECK_THROWS_WITH(Exponential{}(progress_at(1, "1ep")), ContainsSubstring("Exponential's gamma"));
  CHECK_THROWS_WITH(Polynomial{}(progress_at(1, "1ep")), ContainsSubstring("Polynomial's power"));
  CHECK_THROWS_WITH((CosineAnnealingWarmRestarts{"4ba", 0.5}(progress_at(0, "1ep"))),
                    ContainsSubstring("shrink to nothing"));
  CHECK_THROWS_AS(Step{"1ep"}(unsized), std::invalid_argument);
}

TEST_CASE("a warmup that does not fit the schedule or the run is refused",
          "[optim][schedule][error]") {
  CHECK_THROWS_WITH(
      (LinearWithWarmup{.t_warmup = "5ba", .t_max = "20ba"}(progress_at(0, "4ep", 10))),
      ContainsSubstring("LinearWithWarmup ends at t_max = 20ba, before the run") &&
          ContainsSubstring("4ep"));
  CHECK_THROWS_WITH(
      (CosineAnnealingWithWarmup{.t_warmup = "5ba", .t_max = "160sp"}(progress_at(0, "4ep"))),
      ContainsSubstring("t_warmup in ba and t_max in sp"));
  CHECK_THROWS_WITH(
      (PolynomialWithWarmup{.t_warmup = "5ba", .t_max = "1ep"}(progress_at(0, "20ba", 10))),
      ContainsSubstring("before the run does at 20ba"));
  CHECK_THROWS_WITH(
      (ConstantWithWarmup{.t_warmup = "5ba", .t_max = "1ep"}(progress_at(0, "20ba", 10))),
      ContainsSubstring("ConstantWithWarmup"));
  CHECK_NOTHROW((LinearWithWarmup{.t_warmup = "5ba", .t_max = "4ep"}(progress_at(0, "4ep", 10))));
}

TEST_CASE("a warmup that vanishes is noticed once the run is known", "[optim][schedule]") {
  const Schedule s = LinearWithWarmup{.t_warmup = "0.001dur"};
  CHECK_THAT(s.notice(progress_at(0, "4ep", 10)), ContainsSubstring("there is no warmup"));
  CHECK(s.notice(progress_at(0, "4ep", 1000)) == "");
  CHECK(Schedule(Linear{}).notice(progress_at(0, "4ep", 10)) == "");
}

TEST_CASE("a list of times refuses more than it holds", "[optim][schedule][error]") {
  TimeList list;
  for (std::size_t i = 0; i < TimeList::capacity; ++i) {
    list.push_back(static_cast<int>(i));
  }
  CHECK(list[5] == 5);
  CHECK_THROWS_AS(list.push_back("1ep"), std::length_error);
}
