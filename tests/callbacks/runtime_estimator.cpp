#include <tutti/callbacks/runtime_estimator.hpp>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace std::chrono_literals;
using callback_run::ByHand;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<RuntimeEstimator> == Role::callback);
static_assert(Recipe<With<RuntimeEstimator{.skip_batches = 3}>>::valid);

namespace {

double seconds = 0;
double scripted_clock() {
  return seconds;
}

// A batch that takes so long, without what its start and end do.
void batch(RuntimeEstimator& estimator, ByHand& run, double takes) {
  estimator.apply(BatchStart{}, run.state);
  seconds += takes;
  run.advance(1, 0, 0ns);
  estimator.apply(BatchEnd{}, run.state);
}

void evaluation(RuntimeEstimator& estimator, ByHand& run, std::chrono::nanoseconds takes) {
  seconds += tutti::detail::to_seconds(takes);
  run.state.dataloader_label = "test";
  run.state.eval_timestamp = Timestamp{}.to_next_batch(1, 0, takes);
  estimator.apply(EvalEnd{}, run.state);
  run.state.dataloader_label = "train";
}

}  // namespace

TEST_CASE("what is left takes as long per part of the run as what was done",
          "[callbacks][runtime_estimator]") {
  RuntimeEstimator estimator{.time_unit = ClockUnit::minutes, .clock = &scripted_clock};
  ByHand run;
  run.state.max_duration = "10ba";
  batch(estimator, run, 500);  // skipped
  CHECK_FALSE(run.memory.data.contains("time/remaining_estimate"));
  batch(estimator, run, 60);
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(8.0));
  batch(estimator, run, 120);
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(7 * 1.5));
  for (int i = 0; i < 7; ++i) {
    batch(estimator, run, 90);
  }
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(0.0).margin(1e-9));
}

TEST_CASE("epochs are counted by their batches", "[callbacks][runtime_estimator]") {
  RuntimeEstimator estimator{
      .skip_batches = 0, .time_unit = ClockUnit::seconds, .clock = &scripted_clock};
  ByHand run;
  run.state.max_duration = "3ep";
  run.state.train_dataloader_len = 4;
  batch(estimator, run, 10);
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(110.0));
  batch(estimator, run, 10);
  run.state.timestamp = run.state.timestamp.to_next_epoch();  // an epoch had 2 batches, not 4
  batch(estimator, run, 10);
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(30.0));
}

TEST_CASE("evaluations that are still to come are added", "[callbacks][runtime_estimator]") {
  const std::int64_t skipped = GENERATE(0, 1);
  RuntimeEstimator estimator{
      .skip_batches = skipped, .time_unit = ClockUnit::seconds, .clock = &scripted_clock};
  ByHand run;
  run.state.max_duration = Time(10 + skipped, TimeUnit::batch);
  if (skipped == 1) {
    batch(estimator, run, 500);
  }
  const auto two_batches = [&] {
    batch(estimator, run, 10);
    batch(estimator, run, 10);
  };
  two_batches();
  evaluation(estimator, run, 50s);  // one of 5
  batch(estimator, run, 10);
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(7 * 10 + 4 * 50.0));
  batch(estimator, run, 10);
  evaluation(estimator, run, 20s);  // the first one no longer counts
  batch(estimator, run, 10);
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(5 * 10 + 3 * 20.0));
}

TEST_CASE("a real run logs its estimate and the unit", "[callbacks][runtime_estimator]") {
  auto options = callback_run::options(3, "2ep");
  options.eval = {{"test", tiny::batches(1)}};
  Trainer trainer{tiny::net(), options, RuntimeEstimator{}, InMemoryLogger{}};
  trainer.fit();
  const auto& memory = trainer.get<InMemoryLogger>();
  CHECK(memory.series("time/remaining_estimate").values.size() == 5);
  CHECK(*memory.hyperparameters.at("time/remaining_estimate_unit").get_if<std::string>() ==
        "hours");
}

TEST_CASE("a run without an end has no estimate and says so once",
          "[callbacks][runtime_estimator]") {
  const Warnings warnings;
  RuntimeEstimator estimator{.skip_batches = 0, .clock = &scripted_clock};
  ByHand run;
  for (int i = 0; i < 3; ++i) {
    batch(estimator, run, 10);
  }
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("max_duration is not set"));
  CHECK_FALSE(run.memory.data.contains("time/remaining_estimate"));
  CHECK_THROWS_WITH(RuntimeEstimator{.skip_batches = -1}.validate(),
                    ContainsSubstring("skip_batches is -1, expected 0 or more"));
}

TEST_CASE("another fit is estimated from its own beginning", "[callbacks][runtime_estimator]") {
  RuntimeEstimator estimator{
      .skip_batches = 0, .time_unit = ClockUnit::seconds, .clock = &scripted_clock};
  ByHand run;
  run.state.max_duration = "2ba";
  estimator.apply(FitStart{}, run.state);
  batch(estimator, run, 10);
  batch(estimator, run, 10);
  seconds += 1000;  // what happens between
  run.state.max_duration = "6ba";
  estimator.apply(FitStart{}, run.state);
  batch(estimator, run, 5);
  CHECK(run.memory.latest("time/remaining_estimate") == Approx(15.0));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
