#include <tutti/callbacks/reduce_lr_on_plateau.hpp>

#include <limits>

#include <tutti/callbacks/lr_monitor.hpp>
#include <tutti/core/with.hpp>
#include <tutti/optim/schedules.hpp>

#include "callbacks/run.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using callback_run::metric_net;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<ReduceLROnPlateau> == Role::callback);
static_assert(
    Recipe<With<ReduceLROnPlateau{.monitor = "Loss", .dataloader_label = "test"}>>::valid);

namespace {

constexpr ReduceLROnPlateau plateau{.monitor = "Loss", .dataloader_label = "test"};

// 19 looks; from the eleventh on little changes.
const std::vector<double> falling{1.0, 0.8,     0.79999, 0.9, 0.7, 0.71, 0.72, 0.73, 0.74, 0.75,
                                  0.5, 0.50004, 0.49999, 0.6, 0.6, 0.6,  0.6,  0.6,  0.6};

std::vector<double> negated(std::vector<double> values) {
  for (double& value : values) {
    value = -value;
  }
  return values;
}

// One parameter in each of two groups.
OptimizerSpec two_groups() {
  return [](torch::nn::Module& model) {
    auto parameters = model.parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.push_back(optim::group({parameters[0]}, SGD{.lr = 0.1}));
    groups.push_back(optim::group({parameters[1]}, SGD{.lr = 0.02}));
    return SGD{.lr = 0.1}.build(std::move(groups));
  };
}

double rate(const State& state, std::size_t group = 0) {
  return state.optimizers[0]->param_groups()[group].options().get_lr();
}

// The rates of both groups after each look at a value.
void check(ReduceLROnPlateau policy, const std::vector<double>& values,
           const std::vector<double>& first, const std::vector<double>& second) {
  policy.validate();
  const auto net = tiny::net();
  State state;
  state.dataloader_label = "test";
  state.optimizers = {two_groups().build(*net, {})};
  for (std::size_t i = 0; i < values.size(); ++i) {
    INFO("look " << i);
    state.eval_metric_values["test"]["Loss"] = values[i];
    policy.apply(EvalEnd{}, state);
    CHECK(rate(state, 0) == first[i]);
    CHECK(rate(state, 1) == second[i]);
  }
}

TrainerOptions with_eval(Time length) {
  auto options = callback_run::options(2, length);
  options.eval = {{"test", tiny::batches(1)}};
  return options;
}

auto loss_net(std::vector<double> eval_values, std::vector<double> train_values = {}) {
  auto net = metric_net(std::move(eval_values), std::move(train_values));
  net->metric = "Loss";
  return net;
}

}  // namespace

// The rates are those of PyTorch 2.11's ReduceLROnPlateau, bit for bit.
TEST_CASE("rates are those of PyTorch's, value by value", "[callbacks][plateau][golden]") {
  ReduceLROnPlateau policy = plateau;
  policy.patience = 1;
  check(
      policy, falling,
      {0.1, 0.1, 0.1, 0.010000000000000002, 0.010000000000000002, 0.010000000000000002,
       0.0010000000000000002, 0.0010000000000000002, 0.00010000000000000003, 0.00010000000000000003,
       0.00010000000000000003, 0.00010000000000000003, 1.0000000000000004e-05,
       1.0000000000000004e-05, 1.0000000000000004e-06, 1.0000000000000004e-06,
       1.0000000000000005e-07, 1.0000000000000005e-07, 1.0000000000000005e-08},
      {0.02, 0.02, 0.02, 0.002, 0.002, 0.002, 0.0002, 0.0002, 2e-05, 2e-05, 2e-05, 2e-05,
       2.0000000000000003e-06, 2.0000000000000003e-06, 2.0000000000000004e-07,
       2.0000000000000004e-07, 2.0000000000000007e-08, 2.0000000000000007e-08,
       2.000000000000001e-09});
  policy = plateau;
  policy.patience = 2;
  policy.factor = 0.5;
  policy.threshold = 0.05;
  policy.threshold_mode = ThresholdMode::absolute;
  policy.min_lr = 0.03;
  check(policy, falling,
        {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.03, 0.03, 0.03,
         0.03, 0.03, 0.03},
        {0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02,
         0.02, 0.02, 0.02, 0.02});
  policy = plateau;
  policy.mode = Comparison::greater;
  policy.patience = 1;
  policy.factor = 0.3;
  policy.threshold = 0.1;
  policy.cooldown = 2;
  check(policy, negated(falling),
        {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.03, 0.03, 0.03,
         0.03, 0.009},
        {0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.006,
         0.006, 0.006, 0.006, 0.0018});
  policy = plateau;
  policy.mode = Comparison::greater;
  policy.patience = 0;
  policy.factor = 0.5;
  policy.threshold = 0.02;
  policy.threshold_mode = ThresholdMode::absolute;
  policy.cooldown = 1;
  policy.eps = 0.004;
  check(policy, negated(falling),
        {0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125, 0.00625, 0.00625, 0.00625,
         0.00625, 0.00625, 0.00625, 0.00625, 0.00625, 0.00625, 0.00625},
        {0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005, 0.005, 0.005, 0.005, 0.005, 0.005, 0.005,
         0.005, 0.005, 0.005, 0.005, 0.005, 0.005});
  policy = plateau;
  policy.patience = 0;
  policy.factor = 0.0;
  policy.min_lr = 0.01;
  check(policy, falling,
        {0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01,
         0.01, 0.01, 0.01, 0.01},
        {0.02, 0.02, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01,
         0.01, 0.01, 0.01, 0.01});
}

TEST_CASE("a number is better than a first value that is none, as in PyTorch",
          "[callbacks][plateau][golden]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ReduceLROnPlateau policy = plateau;
  policy.patience = 1;
  policy.factor = 0.5;
  check(policy, {nan, nan, nan, 0.5, nan, 0.4, nan, nan, nan, nan},
        {0.1, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.025, 0.025, 0.0125},
        {0.02, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005, 0.0025});
}

TEST_CASE("an absolute threshold is taken as it is, and other sets do not count",
          "[callbacks][plateau]") {
  ReduceLROnPlateau policy = plateau;
  policy.patience = 0;
  policy.threshold = 0.05;
  policy.threshold_mode = ThresholdMode::absolute;
  check(policy, {1.0, 0.92, 0.88}, {0.1, 0.1, 0.1 * 0.1}, {0.02, 0.02, 0.02 * 0.1});
  State state;
  state.dataloader_label = "test";
  CHECK(policy.match(EvalEnd{}, state));
  state.dataloader_label = "other";
  CHECK_FALSE(policy.match(EvalEnd{}, state));
}

TEST_CASE("by name a loss gets smaller and an accuracy larger", "[callbacks][plateau]") {
  for (const bool loss : {true, false}) {
    auto options = with_eval("4ep");
    auto net = loss_net({0.5, 0.6, 0.7, 0.8});
    net->metric = loss ? "Loss" : "Accuracy";
    ReduceLROnPlateau policy = plateau;
    policy.monitor = net->metric.c_str();
    policy.patience = 2;
    Trainer trainer{net, options, policy};
    trainer.fit();
    CHECK(rate(trainer.state()) == (loss ? 0.1 * 0.1 : 0.1));
  }
}

TEST_CASE("beside a schedule its base is reduced, and the rate at once",
          "[callbacks][plateau][schedule]") {
  auto options = with_eval("4ep");
  options.schedule = Linear{};  // 1 - batch/8
  ReduceLROnPlateau policy = plateau;
  policy.patience = 0;
  policy.factor = 0.5;
  policy.min_lr = 0.03;
  Trainer trainer{loss_net({0.5, 0.6, 0.4, 0.6}), options, policy, LRMonitor{}, InMemoryLogger{}};
  trainer.fit();
  // After batch b the schedule is at b - 1. Reduced after epochs 2 and 4, the second time to
  // min_lr.
  const std::vector<double> expected{0.1,   0.0875,  0.075,  0.0625,  0.03125,
                                     0.025, 0.01875, 0.0125, 0.00625, 0.00375};
  const auto logged = trainer.get<InMemoryLogger>().series("lr-SGD/group0").values;
  CHECK(trainer.state().initial_lrs == std::vector<double>{0.03});
  REQUIRE(logged.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(i);
    CHECK(logged[i] == Approx(expected[i]));
  }
}

TEST_CASE("evaluations every few batches are looked at each time", "[callbacks][plateau]") {
  auto options = callback_run::options(6, "1ep");
  options.eval = {{"test", tiny::batches(1)}};
  options.eval_interval = "2ba";
  ReduceLROnPlateau policy = plateau;
  policy.patience = 0;
  Trainer trainer{loss_net({0.5, 0.6, 0.7}), options, policy, InMemoryLogger{}};
  trainer.fit();
  const auto& series = trainer.get<InMemoryLogger>().series("lr-SGD/group0");
  REQUIRE(series.values.size() == 2);  // logged when it changes, with or without an LRMonitor
  CHECK(series.timestamps[0].batch == 4);
  CHECK(series.timestamps[1].batch == 6);
  CHECK(series.values[1] == 0.1 * 0.1 * 0.1);
}

TEST_CASE("the training set is looked at after every epoch", "[callbacks][plateau]") {
  ReduceLROnPlateau policy = plateau;
  policy.dataloader_label = "train";
  policy.patience = 1;
  Trainer trainer{loss_net({}, {0.5}), callback_run::options(2, "3ep"), policy};
  trainer.fit();
  CHECK(rate(trainer.state()) == 0.1 * 0.1);
}

TEST_CASE("an evaluation outside fit changes nothing, and another fit goes on",
          "[callbacks][plateau]") {
  ReduceLROnPlateau policy = plateau;
  policy.patience = 2;
  Trainer trainer{loss_net({0.5}), with_eval("2ep"), policy};
  trainer.fit();
  for (int i = 0; i < 5; ++i) {
    trainer.eval();
  }
  CHECK(trainer.get<ReduceLROnPlateau>().run.bad == 1);
  CHECK(rate(trainer.state()) == 0.1);
  trainer.fit({.duration = "2ep"});
  CHECK(rate(trainer.state()) == 0.1 * 0.1);
  trainer.fit({.duration = "1ep", .schedule = Constant{.alpha = 0.5}});
  CHECK(rate(trainer.state()) == 0.1 * 0.1 * 0.5);
}

TEST_CASE("a resumed run has the same rates, counts and weights", "[callbacks][plateau][resume]") {
  const std::vector<double> values{0.5, 0.6, 0.7, 0.4, 0.6, 0.7, 0.8, 0.9};
  for (const bool scheduled : {false, true}) {
    const TemporaryFolder folder;
    auto options = with_eval("8ep");
    options.optimizer = two_groups();
    options.save_folder = folder.path().string();
    if (scheduled) {
      options.schedule = CosineAnnealing{};
    }
    ReduceLROnPlateau policy = plateau;
    policy.patience = 0;
    policy.cooldown = 1;
    policy.factor = 0.7;
    Trainer whole{loss_net(values), options, policy};
    whole.fit();
    CHECK(rate(whole.state()) < 0.07);
    for (const std::size_t epochs : {2U, 5U}) {
      auto again = options;
      again.save_folder = "";
      again.load_path =
          (folder.path() / ("ep" + std::to_string(epochs) + "-ba" + std::to_string(2 * epochs)))
              .string();
      Trainer resumed{
          loss_net({values.begin() + static_cast<std::ptrdiff_t>(epochs), values.end()}), again,
          policy};
      resumed.fit();
      for (const std::size_t group : {0U, 1U}) {
        CHECK(rate(resumed.state(), group) == rate(whole.state(), group));
      }
      CHECK(tiny::flat(*resumed.state().model).equal(tiny::flat(*whole.state().model)));
      const auto& one = resumed.get<ReduceLROnPlateau>();
      const auto& other = whole.get<ReduceLROnPlateau>();
      CHECK(*one.run.best == *other.run.best);
      CHECK(one.run.bad == other.run.bad);
      CHECK(one.run.cooldown_left == other.run.cooldown_left);
    }
  }
}

TEST_CASE("bad looks and the cooldown are saved", "[callbacks][plateau][resume]") {
  ReduceLROnPlateau policy = plateau;
  policy.run.bad = 2;
  policy.run.cooldown_left = 3;
  Archive archive;
  policy.save(archive);
  ReduceLROnPlateau other = plateau;
  other.load(archive);
  CHECK(other.run.bad == 2);
  CHECK(other.run.cooldown_left == 3);
  CHECK_FALSE(other.run.best);
}

TEST_CASE("options of ReduceLROnPlateau that make no sense are refused", "[callbacks][plateau]") {
  CHECK_NOTHROW(plateau.validate());
  const auto refused = [](auto change, const char* what) {
    ReduceLROnPlateau policy = plateau;
    change(policy);
    CHECK_THROWS_WITH(policy.validate(), ContainsSubstring(what));
  };
  refused([](auto& p) { p.monitor = ""; }, "monitor is empty");
  refused([](auto& p) { p.dataloader_label = ""; }, "dataloader_label is empty");
  refused([](auto& p) { p.factor = 1; }, "factor is 1, expected 0 or more, below 1");
  refused([](auto& p) { p.patience = -1; }, "patience is -1, expected 0 or more");
  refused([](auto& p) { p.threshold = -1; }, "threshold is -1");
  refused([](auto& p) { p.cooldown = -1; }, "cooldown is -1");
  refused([](auto& p) { p.min_lr = -1; }, "min_lr is -1");
  refused([](auto& p) { p.eps = -1; }, "eps is -1");
}

TEST_CASE("a metric or a set that is not there is told of", "[callbacks][plateau]") {
  Trainer wrong{metric_net({0.1}), with_eval("1ep"), plateau};
  CHECK_THROWS_WITH(wrong.fit(), ContainsSubstring("ReduceLROnPlateau: the set \"test\" has no "
                                                   "metric \"Loss\"; there are: Accuracy."));
  const Warnings warnings;
  Trainer trainer{loss_net({0.1}), callback_run::options(2, "1ep"), plateau};
  trainer.fit();
  trainer.close();
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("ReduceLROnPlateau: the set \"test\" has not "
                                                  "been evaluated, so nothing could reduce the "
                                                  "learning rate"));
}

TEST_CASE("ReduceLROnPlateau says at the start what it does not find or has to guess",
          "[callbacks][reduce_lr_on_plateau]") {
  const Warnings warnings;
  auto options = callback_run::options(2, "1ep");
  options.eval = {{"test", tiny::batches(1)}};
  Trainer trainer{metric_net({0.1}), options,
                  ReduceLROnPlateau{.monitor = "latency", .dataloader_label = "tset"}};
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("ReduceLROnPlateau: the name \"latency\" does not say") &&
                 ContainsSubstring("mode = Comparison::less if it is not"));
  trainer.fit();
  REQUIRE(warnings.texts.size() == 2);
  CHECK_THAT(warnings.texts[1],
             ContainsSubstring("ReduceLROnPlateau: dataloader_label is \"tset\"") &&
                 ContainsSubstring("of that name, but: test"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
