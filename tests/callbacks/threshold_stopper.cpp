#include <tutti/callbacks/threshold_stopper.hpp>

#include <tutti/core/with.hpp>

#include "callbacks/run.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using callback_run::metric_net;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<ThresholdStopper> == Role::callback);
static_assert(Recipe<With<ThresholdStopper{
                  .monitor = "Accuracy", .dataloader_label = "test", .threshold = 0.5}>>::valid);

TEST_CASE("a run stops at the evaluation that is better than the threshold",
          "[callbacks][threshold_stopper]") {
  auto options = callback_run::options(2, "9ep");
  options.eval = {{"test", tiny::batches(1)}};
  for (const bool on_batch : {false, true}) {  // of the training set, so of no account here
    const Warnings warnings;
    Trainer trainer{metric_net({0.1, 0.5, 0.6}), options,
                    ThresholdStopper{.monitor = "Accuracy",
                                     .dataloader_label = "test",
                                     .threshold = 0.5,
                                     .stop_on_batch = on_batch}};
    trainer.fit();
    CHECK(trainer.state().timestamp.epoch == 3);  // 0.5 is not better than 0.5
    CHECK(warnings.texts.empty());
  }
}

TEST_CASE("an evaluation outside fit does not stop the fit that follows",
          "[callbacks][threshold_stopper]") {
  auto options = callback_run::options(2, "3ep");
  options.eval = {{"test", tiny::batches(1)}};
  Trainer trainer{
      metric_net({0.9, 0.1, 0.6}), options,
      ThresholdStopper{.monitor = "Accuracy", .dataloader_label = "test", .threshold = 0.5}};
  trainer.eval();
  trainer.fit();
  CHECK(trainer.state().timestamp.epoch == 2);
}

TEST_CASE("the training set is looked at after each epoch or each batch",
          "[callbacks][threshold_stopper]") {
  for (const bool on_batch : {false, true}) {
    Trainer trainer{metric_net({}, {0.1, 0.2, 0.9}), callback_run::options(5, "9ep"),
                    ThresholdStopper{.monitor = "Accuracy",
                                     .dataloader_label = "train",
                                     .threshold = 0.5,
                                     .stop_on_batch = on_batch}};
    trainer.fit();
    CHECK(trainer.state().timestamp.batch == (on_batch ? 3 : 5));
  }
}

TEST_CASE("a threshold for a loss is reached from above", "[callbacks][threshold_stopper]") {
  auto net = metric_net({}, {3.0, 2.0, 1.0, 0.5});
  net->metric = "Loss";
  Trainer trainer{
      net, callback_run::options(9, "1ep"),
      ThresholdStopper{
          .monitor = "Loss", .dataloader_label = "train", .threshold = 1.5, .stop_on_batch = true}};
  trainer.fit();
  CHECK(trainer.state().timestamp.batch == 3);
}

TEST_CASE("a ThresholdStopper without a threshold is refused", "[callbacks][threshold_stopper]") {
  CHECK_THROWS_WITH(
      (ThresholdStopper{.monitor = "Accuracy", .dataloader_label = "test"}.validate()),
      ContainsSubstring("threshold is not set"));
}

TEST_CASE("ThresholdStopper warns of a set that was never evaluated",
          "[callbacks][threshold_stopper]") {
  const Warnings warnings;
  Trainer trainer{
      metric_net({0.1}), callback_run::options(2, "1ep"),
      ThresholdStopper{.monitor = "Accuracy", .dataloader_label = "tset", .threshold = 0.5}};
  trainer.fit();
  CHECK(warnings.texts.empty());  // an evaluation may come yet
  trainer.close();
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("ThresholdStopper: the set \"tset\" has not been evaluated"));
}

TEST_CASE("ThresholdStopper says at the start what it does not find or has to guess",
          "[callbacks][threshold_stopper]") {
  const Warnings warnings;
  auto options = callback_run::options(2, "1ep");
  options.eval = {{"test", tiny::batches(1)}};
  Trainer trainer{
      metric_net({0.1}), options,
      ThresholdStopper{.monitor = "latency", .dataloader_label = "tset", .threshold = 0.5}};
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("ThresholdStopper: the name \"latency\" does not say") &&
                 ContainsSubstring("comparison = Comparison::less if it is not"));
  trainer.fit();
  REQUIRE(warnings.texts.size() == 2);
  CHECK_THAT(warnings.texts[1],
             ContainsSubstring("ThresholdStopper: dataloader_label is \"tset\"") &&
                 ContainsSubstring("of that name, but: test"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
