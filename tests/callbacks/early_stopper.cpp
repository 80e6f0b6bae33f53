#include <tutti/callbacks/early_stopper.hpp>

#include <tutti/core/on.hpp>
#include <tutti/core/with.hpp>

#include <limits>

#include "callbacks/run.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using callback_run::metric_net;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<EarlyStopper> == Role::callback);
static_assert(Recipe<With<EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test"}>>::valid);

namespace {

TrainerOptions with_eval(Time length) {
  auto options = callback_run::options(2, length);
  options.eval = {{"test", tiny::batches(1)}};
  return options;
}

}  // namespace

TEST_CASE("a run stops once the best evaluation is more than the patience ago",
          "[callbacks][early_stopper]") {
  // best after epoch 2; epochs 3 and 4 are within the patience of 2 epochs, epoch 5 is beyond it
  Trainer trainer{
      metric_net({0.1, 0.5, 0.4, 0.5, 0.3, 0.9}), with_eval("9ep"),
      EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test", .patience = "2ep"}};
  trainer.fit();
  CHECK(trainer.state().timestamp.epoch == 5);
  CHECK(trainer.state().timestamp.batch == 10);
}

TEST_CASE("an improvement within the patience keeps the run going", "[callbacks][early_stopper]") {
  const Warnings warnings;
  Trainer trainer{metric_net({0.1, 0.5, 0.4, 0.6, 0.3, 0.2}), with_eval("9ep"),
                  EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test"}};
  trainer.fit();
  CHECK(trainer.state().timestamp.epoch == 6);  // best after epoch 4, patience 1ep
  CHECK(warnings.texts.empty());
}

TEST_CASE("changes up to min_delta are no improvement", "[callbacks][early_stopper]") {
  Trainer trainer{
      metric_net({0.5, 0.625, 0.75, 0.625}), with_eval("9ep"),
      EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test", .min_delta = 0.25}};
  trainer.fit();
  CHECK(trainer.state().timestamp.epoch == 3);
}

TEST_CASE("a first value that is no number is no best that nothing can beat",
          "[callbacks][early_stopper]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const EarlyStopper two{.monitor = "Accuracy", .dataloader_label = "test", .patience = "2ep"};
  Trainer recovers{metric_net({nan, nan, 0.1, 0.2, nan, 0.3, 0.2}), with_eval("7ep"), two};
  recovers.fit();
  CHECK(recovers.state().timestamp.epoch == 7);
  Trainer never{metric_net({nan}), with_eval("7ep"), two};
  never.fit();
  CHECK(never.state().timestamp.epoch == 4);  // the patience counts from the first value
}

TEST_CASE("patience in batches stops at exactly that batch", "[callbacks][early_stopper]") {
  // better at batches 1 and 2; batch 6 is the first that is more than 3 batches later
  Trainer trainer{
      metric_net({}, {0.1, 0.2, 0.15}), callback_run::options(50, "1ep"),
      EarlyStopper{.monitor = "Accuracy", .dataloader_label = "train", .patience = "3ba"}};
  trainer.fit();
  CHECK(trainer.state().timestamp.batch == 6);

  // of an evaluation set: looked at when it was evaluated, here after batches 2, 4, 6
  Trainer other{metric_net({0.2, 0.1}), with_eval("9ep"),
                EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test", .patience = "3ba"}};
  other.fit();
  CHECK(other.state().timestamp.batch == 6);
}

TEST_CASE("by name losses and perplexities get smaller and accuracies larger",
          "[callbacks][early_stopper]") {
  for (const char* metric : {"Loss", "ErrorRate", "LanguagePerplexity", "CrossEntropy"}) {
    CHECK(tutti::detail::is_better(Comparison::by_name, metric, 1.0, 2.0));
    CHECK_FALSE(tutti::detail::is_better(Comparison::by_name, metric, 2.0, 1.0));
    CHECK(tutti::detail::is_better(Comparison::greater, metric, 2.0, 1.0));
  }
  CHECK(tutti::detail::is_better(Comparison::by_name, "MulticlassAccuracy", 2.0, 1.0));
  CHECK(tutti::detail::is_better(Comparison::less, "MulticlassAccuracy", 1.0, 2.0));
  CHECK_FALSE(tutti::detail::is_better(Comparison::by_name, "Dice", 1.0, 1.0));
}

TEST_CASE("a resumed run remembers the best value and its time",
          "[callbacks][early_stopper][resume]") {
  const TemporaryFolder folder;
  auto options = with_eval("2ep");
  options.save_folder = folder.path().string();
  const EarlyStopper stopper{.monitor = "Accuracy", .dataloader_label = "test", .patience = "2ep"};
  Trainer first{metric_net({0.8, 0.1}), options, stopper};
  first.fit();

  auto again = with_eval("9ep");
  again.load_path = (folder.path() / "ep2-ba4").string();
  Trainer second{metric_net({0.5, 0.5, 0.5}), again, stopper};
  CHECK(*second.get<EarlyStopper>().run.best == 0.8);
  CHECK(second.get<EarlyStopper>().run.best_batch == 2);
  second.fit();
  CHECK(second.state().timestamp.epoch == 4);  // best after epoch 1

  tutti::Archive before;  // saved before there was any value
  stopper.save(before);
  EarlyStopper fresh = stopper;
  fresh.load(before);
  CHECK_FALSE(fresh.run.best);
}

TEST_CASE("evaluations outside fit do not count", "[callbacks][early_stopper]") {
  Trainer trainer{metric_net({0.9, 0.1, 0.2, 0.3}), with_eval("3ep"),
                  EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test"}};
  trainer.eval();
  trainer.fit();
  CHECK(trainer.state().timestamp.epoch == 3);
  CHECK(*trainer.get<EarlyStopper>().run.best == 0.3);
}

TEST_CASE("a metric that does not exist is refused with those that do",
          "[callbacks][early_stopper]") {
  Trainer trainer{metric_net({0.1}), with_eval("9ep"),
                  EarlyStopper{.monitor = "accuracy", .dataloader_label = "test"}};
  CHECK_THROWS_WITH(trainer.fit(),
                    ContainsSubstring("EarlyStopper: the set \"test\" has no metric \"accuracy\"; "
                                      "there are: Accuracy."));
}

TEST_CASE("options of EarlyStopper that make no sense are refused", "[callbacks][early_stopper]") {
  const EarlyStopper good{.monitor = "Accuracy", .dataloader_label = "test"};
  CHECK_NOTHROW(good.validate());
  CHECK_THROWS_WITH((EarlyStopper{.dataloader_label = "test"}.validate()),
                    ContainsSubstring("monitor is empty"));
  CHECK_THROWS_WITH((EarlyStopper{.monitor = "Accuracy"}.validate()),
                    ContainsSubstring("dataloader_label is empty"));
  CHECK_THROWS_WITH(
      (EarlyStopper{.monitor = "A", .dataloader_label = "test", .min_delta = -1}.validate()),
      ContainsSubstring("min_delta is -1, expected 0 or more"));
  CHECK_THROWS_WITH(
      (EarlyStopper{.monitor = "A", .dataloader_label = "test", .patience = "-1ep"}.validate()),
      ContainsSubstring("patience is -1ep, expected 0 or more"));
  EarlyStopper seconds = good;
  seconds.patience = "5sec";
  CHECK_THROWS_WITH(seconds.validate(),
                    ContainsSubstring("patience is 5sec, expected a time in ep or ba"));
}

TEST_CASE("EarlyStopper warns of a set that was never evaluated", "[callbacks][early_stopper]") {
  const Warnings warnings;
  Trainer trainer{metric_net({0.1}), callback_run::options(2, "1ep"),
                  EarlyStopper{.monitor = "Accuracy", .dataloader_label = "tset"}};
  trainer.fit();
  CHECK(warnings.texts.empty());  // an evaluation may come yet
  trainer.close();
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("EarlyStopper: the set \"tset\" has not been evaluated"));
}

TEST_CASE("EarlyStopper says at the start that there is no set of its label",
          "[callbacks][early_stopper]") {
  const Warnings warnings;
  Trainer trainer{metric_net({0.1}), with_eval("1ep"),
                  EarlyStopper{.monitor = "Accuracy", .dataloader_label = "tset"},
                  on<BatchStart>([&](const State&) { CHECK(warnings.texts.size() == 1); })};
  trainer.fit();
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts[0] ==
        "EarlyStopper: dataloader_label is \"tset\", and there is no evaluation set of that name, "
        "but: test; set it to the label of one");
}

TEST_CASE("less of a mean absolute error is better, and a direction that is not known is said",
          "[callbacks][early_stopper]") {
  const auto epochs = [](const char* metric, Comparison comparison) {
    auto net = metric_net({0.5, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1});
    net->metric = metric;
    Trainer trainer{
        net, with_eval("7ep"),
        EarlyStopper{.monitor = metric, .dataloader_label = "test", .comparison = comparison}};
    trainer.fit();
    return trainer.state().timestamp.epoch;
  };
  const Warnings warnings;
  CHECK(epochs("MAE", Comparison::by_name) == 6);
  CHECK(epochs("latency", Comparison::less) == 6);
  CHECK(warnings.texts.empty());
  CHECK(epochs("latency", Comparison::by_name) == 3);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("EarlyStopper: the name \"latency\" does not say") &&
                 ContainsSubstring("or comparison = Comparison::less if it is not"));
}

TEST_CASE("EarlyStopper has seen the evaluation with which a run ends",
          "[callbacks][early_stopper]") {
  const Warnings warnings;
  {
    Trainer trainer{metric_net({0.1}), with_eval("1ba"),
                    EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test"}};
    trainer.fit();
    CHECK(static_cast<bool>(trainer.get<EarlyStopper>().run.best));
  }
  CHECK(warnings.texts.empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
