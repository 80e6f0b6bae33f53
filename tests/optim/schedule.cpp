#include <tutti/optim/schedule.hpp>

#include "optim/progress.hpp"
#include "support/catch.hpp"

#include <tutti/optim/annealing.hpp>
#include <tutti/optim/step.hpp>
#include <tutti/optim/warmup.hpp>
#include <stdexcept>
#include <string>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Halving {
  double operator()(const Progress&, double ssr) const { return ssr / 2; }
};
struct NotConst {
  double operator()(const Progress&, double) { return 1; }
};
struct Wordy {
  double operator()(const Progress&, double) const { return 1; }
  const char* notice(const Progress&, double ssr) const { return ssr == 1.0 ? "" : "stretched"; }
};

constexpr auto of_progress_alone = [](const Progress&) { return 1.0F; };

}  // namespace

static_assert(ScalableSchedule<CosineAnnealing> && ScalableSchedule<Halving>);
static_assert(LearningRateSchedule<decltype(of_progress_alone)>);
static_assert(!ScalableSchedule<decltype(of_progress_alone)>);
static_assert(!LearningRateSchedule<int> && !LearningRateSchedule<NotConst>);
static_assert(ScalableSchedule<Product<Halving, Product<Halving, Step>>>);

TEST_CASE("any function of the progress is a schedule", "[optim][schedule]") {
  const Schedule one = [](const Progress& p) { return p.timestamp < "3ba" ? 1.0 : 0.1; };
  CHECK(one(progress_at(2, "1ep")) == 1.0);
  CHECK(one(progress_at(3, "1ep")) == 0.1);
  CHECK(one(progress_at(3, "1ep"), 1.0) == 0.1);

  const Schedule two = [](const Progress&, double ssr) { return ssr; };
  CHECK(two(progress_at(0, "1ep"), 0.5) == 0.5);
  CHECK(two(progress_at(0, "1ep")) == 1.0);
  CHECK(two);
}

TEST_CASE("a function of the progress alone refuses to be scaled and says what to write",
          "[optim][schedule][error]") {
  const Schedule one = of_progress_alone;
  CHECK_THROWS_AS(one(progress_at(3, "1ep"), 0.5), std::invalid_argument);
  CHECK_THROWS_WITH(one(progress_at(3, "1ep"), 0.5),
                    ContainsSubstring("cannot be scaled") &&
                        ContainsSubstring("take a second parameter, double scale_schedule_ratio"));
}

TEST_CASE("an empty schedule leaves learning rates alone, however it is scaled",
          "[optim][schedule]") {
  const Schedule none;
  CHECK_FALSE(none);
  CHECK(none(progress_at(0, "1ep")) == 1.0);
  CHECK(none(Progress{}, 0.1) == 1.0);
  CHECK(none.notice(Progress{}).empty());
}

TEST_CASE("a copy of a schedule is the same schedule, not one around it", "[optim][schedule]") {
  Schedule original = LinearWithWarmup{.t_warmup = "0.001dur"};
  const Schedule copy = original;
  original = Schedule();
  CHECK_FALSE(original);
  REQUIRE(copy);
  CHECK(copy(progress_at(20, "4ep", 10)) == 0.5);
  CHECK_THAT(copy.notice(progress_at(0, "4ep", 10)), ContainsSubstring("there is no warmup"));
}

TEST_CASE("a warmup that is longer than the run is noticed", "[optim][schedule]") {
  const auto notice = [](Time warmup, Progress progress) {
    return Schedule(ConstantWithWarmup{.t_warmup = warmup}).notice(progress);
  };
  CHECK(notice("40ba", progress_at(0, "4ep", 10)).empty());
  CHECK(notice("41ba", progress_at(0, "4ep", -1)).empty());  // nobody knows
  CHECK_THAT(notice("41ba", progress_at(0, "4ep", 10)),
             ContainsSubstring("t_warmup of 41ba is longer than the run of 4ep"));
  CHECK_THAT(notice("5ep", progress_at(0, "4ep", 10)), ContainsSubstring("longer than the run"));
}

TEST_CASE("a schedule says what its own notice says, and else nothing", "[optim][schedule]") {
  const Schedule wordy = Wordy{};
  CHECK(wordy.notice(Progress{}).empty());
  CHECK(wordy.notice(Progress{}, 2.0) == "stretched");
  CHECK(Schedule(Linear{}).notice(progress_at(0, "4ep", 10)).empty());
}

TEST_CASE("a product multiplies its schedules and scales both", "[optim][schedule][law]") {
  const Product both{Linear{.t_max = "100ba"}, Step{.step_size = "50ba", .gamma = 0.5}};
  CHECK(both(progress_at(50, "1ep")) == Approx(0.25));
  CHECK(both(progress_at(100, "1ep"), 2.0) == Approx(0.25));
  const Schedule nested = Product{both, Halving{}};
  CHECK(nested(progress_at(100, "1ep"), 2.0) == Approx(0.25));
  CHECK(nested(progress_at(50, "1ep")) == Approx(0.125));
}

TEST_CASE("a product passes on what both of its schedules have to say", "[optim][schedule]") {
  const Progress start = progress_at(0, "4ep", 10);
  const ConstantWithWarmup silent{.t_warmup = "5ba"};
  const LinearWithWarmup empty{.t_warmup = "0.001dur"};
  CHECK(Schedule(Product{silent, Linear{}}).notice(start).empty());
  CHECK(Schedule(Product{empty, Step{"1ep"}}).notice(start) == empty.notice(start, 1.0));
  CHECK(Schedule(Product{silent, empty}).notice(start) == empty.notice(start, 1.0));
  CHECK(Schedule(Product{Wordy{}, empty}).notice(start, 2.0) ==
        "stretched\n" + empty.notice(start, 2.0));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
