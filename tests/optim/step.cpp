#include <tutti/optim/step.hpp>

#include "optim/progress.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

// A schedule is a constant: no heap, no state.
constexpr MultiStep three{.milestones = {"10ba", "2ep", "0.5dur"}, .gamma = 0.3};
static_assert(three.milestones.size() == 3 && three.milestones[1] == Time::epochs(2));

namespace {

constexpr Time thousand_epochs = "1000ep"_t;  // not in the template, where Clang 14 would call _t

// 1000 batches an epoch, 1000 epochs times the ratio.
template <class S>
void check(const S& schedule, double ssr, const std::vector<std::int64_t>& batches,
           const std::vector<double>& alphas) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    INFO("at batch " << batches[i]);
    CHECK(schedule(progress_at(batches[i], thousand_epochs * ssr), ssr) ==
          Approx(alphas[i]).margin(1e-12));
  }
}

}  // namespace

TEST_CASE("schedules in steps give their known values at known batches", "[optim][schedule]") {
  check(Step{"10ba"}, 1, {5, 15, 35}, {1, 0.1, 0.001});
  check(Step{"0.002dur", 0.8}, 1, {1000, 3000, 7000}, {1, 0.8, 0.512});
  check(MultiStep{{"100ba", "1ep", "0.01dur"}, 0.5}, 4, {200, 2000, 20000, 200000},
        {1, 0.5, 0.25, 0.125});
  check(Exponential{0.5}, 2, {2000, 4000, 8000}, {0.5, 0.25, 0.0625});
}

TEST_CASE("a step is taken at its very batch, in whatever unit it is given",
          "[optim][schedule][law]") {
  for (const Time size :
       {Time("20ba"), Time("2ep"), Time("80sp"), Time("640tok"), Time("0.5dur")}) {
    INFO(to_string(size));
    CHECK(Step{size}(progress_at(0, "4ep", 10)) == 1.0);
    CHECK(Step{size}(progress_at(19, "4ep", 10)) == 1.0);
    CHECK(Step{size}(progress_at(20, "4ep", 10)) == 0.1);
    CHECK(Step{size}(progress_at(39, "4ep", 10)) == 0.1);
    CHECK(Step{size}(progress_at(40, "4ep", 10)) == Approx(0.01));
  }
  Progress third = progress_at(7, "4ep", 10);
  third.timestamp.iteration = 3;
  CHECK(Step{"2iter", 0.5}(third) == 0.5);
}

TEST_CASE("milestones need no order, may differ in unit and may coincide",
          "[optim][schedule][law]") {
  const MultiStep mixed{.milestones = {"0.75dur", "10ba", "80sp", "2ep"}, .gamma = 0.5};
  const std::vector<std::pair<std::int64_t, double>> known = {
      {0, 1}, {9, 1}, {10, 0.5}, {19, 0.5}, {20, 0.125}, {29, 0.125}, {30, 0.0625}, {400, 0.0625}};
  for (const auto& [batch, alpha] : known) {
    INFO("at batch " << batch);
    CHECK(mixed(progress_at(batch, "4ep", 10)) == alpha);
  }
  CHECK(MultiStep{.milestones = {}}(progress_at(400, "4ep", 10)) == 1.0);
  CHECK(MultiStep{.milestones = {"0ba"}}(progress_at(0, "4ep", 10)) == 0.1);
}

TEST_CASE("an exponential decays between its periods too", "[optim][schedule][law]") {
  const Exponential halves{.gamma = 0.5, .decay_period = "10ba"};
  for (std::int64_t batch = 0; batch <= 40; ++batch) {
    CHECK(halves(progress_at(batch, "4ep", 10)) ==
          Approx(std::pow(0.5, static_cast<double>(batch) / 10)));
  }
  CHECK(Exponential{.gamma = 2}(progress_at(20, "4ep", 10)) == 4.0);  // it may grow
}

TEST_CASE("a part of a run counted otherwise than in epochs is counted as the run is",
          "[optim][schedule]") {
  Progress timed{.max_duration = "100sec"};
  timed.timestamp.total_wct = std::chrono::seconds(49);
  CHECK(Step{"0.5dur"}(timed) == 1.0);
  timed.timestamp.total_wct = std::chrono::seconds(50);
  CHECK(Step{"0.5dur"}(timed) == 0.1);
  CHECK(Step{"0.5dur"}(progress_at(24, "200sp")) == 1.0);  // 4 samples a batch
  CHECK(Step{"0.5dur"}(progress_at(25, "200sp")) == 0.1);
}

TEST_CASE("times that a schedule cannot use are refused with the reason",
          "[optim][schedule][error]") {
  const Progress unsized{.max_duration = "3ep"};
  CHECK_THROWS_WITH(Step{"1ep"}(unsized), ContainsSubstring("1ep needs a dataloader whose length"));
  CHECK_THROWS_WITH(Step{"0.1dur"}(unsized), ContainsSubstring("dataloader whose length"));
  Progress nothing = unsized;
  nothing.dataloader_len = 0;
  CHECK_THROWS_WITH(Step{"1ep"}(nothing), ContainsSubstring("the training loader has no batch"));
  CHECK_THROWS_WITH(MultiStep{{"1ep"}}(unsized), ContainsSubstring("dataloader whose length"));
  CHECK_NOTHROW(Step{"1ba"}(unsized));
  CHECK_THROWS_WITH(Step{"0.1dur"}(Progress{}), ContainsSubstring("needs a max_duration"));
  CHECK_THROWS_WITH(Step{"10sec"}(progress_at(1, "1ep")), ContainsSubstring("10sec is in seconds"));
  CHECK_THROWS_WITH(MultiStep{{"10sec"}}(progress_at(1, "1ep")), ContainsSubstring("in seconds"));
  CHECK_THROWS_AS(Step{"1ep"}(unsized), std::invalid_argument);
  // The product of epochs and batches is checked, as all arithmetic of times is.
  CHECK_THROWS_AS(
      Step{Time::epochs(std::numeric_limits<std::int64_t>::max())}(progress_at(1, "1ep")),
      std::overflow_error);
}

TEST_CASE("steps and periods of no length are refused by name", "[optim][schedule][error]") {
  const Progress p = progress_at(1, "1ep");
  CHECK_THROWS_WITH(Step{"0.0001dur"}(p),
                    ContainsSubstring("Step's step_size is 0.0001dur, which is 0ba "
                                      "once converted to whole units"));
  CHECK_THROWS_WITH(Step{"-10ba"}(p),
                    ContainsSubstring("Step's step_size is -10ba; make it longer"));
  CHECK_THROWS_WITH((Step{"1ba"}(p, 0.5)), ContainsSubstring("step_size is 1ba, which is 0ba"));
  CHECK_THROWS_WITH((Exponential{.gamma = 0.5, .decay_period = "0ba"}(p)),
                    ContainsSubstring("Exponential's decay_period is 0ba"));
  CHECK_THROWS_AS(Step{"0ba"}(p), std::invalid_argument);
}

TEST_CASE("an exponential needs a gamma above 0", "[optim][schedule][error]") {
  const Progress p = progress_at(1, "1ep");
  for (const double gamma : {0.0, -0.5, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_WITH(Exponential{gamma}(p), ContainsSubstring("Exponential's gamma is") &&
                                                 ContainsSubstring("greater than 0"));
  }
  CHECK_THROWS_AS(Exponential{}(p), std::invalid_argument);  // there is no default
}

TEST_CASE("a list of times refuses more than it holds", "[optim][schedule][error]") {
  TimeList list;
  CHECK(list.empty());
  for (std::size_t i = 0; i < TimeList::capacity; ++i) {
    list.push_back(static_cast<int>(i));
  }
  CHECK(list.size() == TimeList::capacity);
  CHECK(list[5] == 5);
  CHECK_THROWS_AS(list.push_back("1ep"), std::length_error);
  CHECK(list.size() == TimeList::capacity);

  const std::vector<Time> many(TimeList::capacity + 1, "1ep");
  CHECK_THROWS_WITH(TimeList(std::span(many)), ContainsSubstring("at most 32 times"));
  CHECK(TimeList(std::span(many).first(3)).size() == 3);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
