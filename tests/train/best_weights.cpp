#include <tutti/train/best_weights.hpp>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/algorithms/ema.hpp>
#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/checkpoint/module_state.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/core/on.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/optim/schedule_free.hpp>
#include <tutti/trainer.hpp>

#include "callbacks/run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using callback_run::metric_net;
using Catch::Matchers::ContainsSubstring;

namespace {

// Notes the weights that are evaluated.
struct Seen final {
  static constexpr std::string_view name = "Seen";
  std::vector<at::Tensor> evaluated{};
  void apply(EvalBeforeForward, const State& state) {
    evaluated.push_back(tiny::flat(*state.model));
  }
};
// One recipe for all of this file: the policies are off unless a test wants them.
using Run = Trainer<Seen, Switch<EMA>, Switch<CheckpointSaver>>;

struct Wants {
  bool ema = false;
  std::string saver{};
  std::string metric = "Accuracy";
};

std::unique_ptr<Run> make(std::vector<double> grades, TrainerOptions options, Wants wants = {}) {
  auto net = metric_net(std::move(grades));
  net->metric = wants.metric;
  return std::make_unique<Run>(
      std::move(net), std::move(options), Seen{}, Switch<EMA>(EMA{.half_life = "2ba"}, wants.ema),
      Switch<CheckpointSaver>(
          CheckpointSaver{.folder = wants.saver.empty() ? "unused" : wants.saver,
                          .monitor = "Accuracy",
                          .dataloader_label = "test",
                          .mode = MonitorMode::max},
          !wants.saver.empty()));
}

TrainerOptions options(Time length = "5ep") {
  TrainerOptions out = callback_run::options(2, length);
  out.eval = {{"test", tiny::batches(1)}};
  out.restore_best = {.monitor = "Accuracy", .dataloader_label = "test"};
  return out;
}

at::Tensor weights_of(Run& run) {
  return tiny::flat(*run.state().model);
}

}  // namespace

TEST_CASE("fit ends with the weights of its best evaluation", "[train][best_weights]") {
  auto run = make({0.1, 0.5, 0.4, 0.5, 0.3}, options());
  CHECK_FALSE(run->best().has_value());
  run->fit();
  const auto& seen = run->get<Seen>().evaluated;
  REQUIRE(seen.size() == 5);
  CHECK(weights_of(*run).equal(seen[1]));  // the first of two equal ones
  CHECK_FALSE(seen[1].equal(seen[4]));
  CHECK(run->best()->value == 0.5);
  CHECK(run->best()->epoch == 2);
  CHECK(run->best()->batch == 4);

  // a further fit() trains on from there, and has to be better
  run->fit("1ep");
  CHECK(weights_of(*run).equal(seen[1]));
  CHECK(run->best()->epoch == 2);
}

TEST_CASE("less is better where the name or the option says so, and any number beats none",
          "[train][best_weights]") {
  TrainerOptions less = options("3ep");
  less.restore_best.comparison = Comparison::less;
  auto run = make({std::numeric_limits<double>::quiet_NaN(), 0.2, 0.5}, less);
  run->fit();
  CHECK(run->best()->value == 0.2);
  CHECK(weights_of(*run).equal(run->get<Seen>().evaluated[1]));
}

TEST_CASE("the weights with the least mean absolute error are the best", "[train][best_weights]") {
  const Warnings warnings;
  TrainerOptions mae = options("3ep");
  mae.restore_best.monitor = "reg/mae";
  auto run = make({0.5, 0.2, 0.4}, mae, {.metric = "reg/mae"});
  run->fit();
  CHECK(run->best()->value == 0.2);
  CHECK(weights_of(*run).equal(run->get<Seen>().evaluated[1]));
  CHECK(warnings.texts.empty());
}

TEST_CASE("restore_best says that a metric's name does not tell which value is better",
          "[train][best_weights]") {
  const Warnings warnings;
  TrainerOptions unknown = options("1ep");
  unknown.restore_best.monitor = "latency";
  static_cast<void>(make({0.5}, unknown, {.metric = "latency"}));
  REQUIRE(warnings.texts.size() == 1);
  CHECK(
      warnings.texts[0] ==
      "restore_best: the name \"latency\" does not say which value is better, so greater is taken "
      "to be; set restore_best.comparison = Comparison::greater if it is, or "
      "restore_best.comparison = Comparison::less if it is not");
}

TEST_CASE("where averages are evaluated the best ones become the weights and the averages",
          "[train][best_weights]") {
  auto run = make({0.1, 0.5, 0.4}, options("3ep"), {.ema = true});
  run->fit();
  const at::Tensor best = run->get<Seen>().evaluated[1];
  CHECK(weights_of(*run).equal(best));
  run->eval();
  CHECK(run->get<Seen>().evaluated.back().equal(best));
}

TEST_CASE("a run that was interrupted ends with the best weights of both parts",
          "[train][best_weights]") {
  const TemporaryFolder folder;
  auto whole = make({0.1, 0.5, 0.4, 0.3}, options("4ep"), {.ema = true});
  whole->fit();
  TrainerOptions first = options("3ep");
  first.save_folder = (folder / "run").string();
  make({0.1, 0.5, 0.4}, first, {.ema = true})->fit();
  TrainerOptions second = options("4ep");
  second.load_path = (folder / "run" / "latest").string();
  auto resumed = make({0.3}, second, {.ema = true});
  CHECK(resumed->best()->epoch == 2);
  resumed->fit();
  CHECK(weights_of(*resumed).equal(weights_of(*whole)));
  CHECK(resumed->best()->value == 0.5);

  // the checkpoint has the run's own weights, and the best apart
  const auto saved = checkpoint::read_snapshot(folder / "run" / "latest");
  CHECK(saved.state.get<std::int64_t>("best/batch") == 4);
  CHECK_FALSE(saved.state.tensor("best/model/in.weight").equal(saved.model.tensor("in.weight")));
}

TEST_CASE("load_best takes them from memory, else from the best checkpoint",
          "[train][best_weights]") {
  const TemporaryFolder folder;
  TrainerOptions plain = options("3ep");
  plain.restore_best = {};
  auto run = make({0.1, 0.5, 0.4}, plain, {.ema = true, .saver = (folder / "best").string()});
  CHECK_THROWS_WITH(run->load_best(), ContainsSubstring("there are no best weights"));
  run->fit();
  const at::Tensor best = run->get<Seen>().evaluated[1];
  CHECK_FALSE(weights_of(*run).equal(best));
  CHECK(run->best_checkpoint() == (folder / "best" / "ep2-ba4").string());
  CHECK(run->load_best() == run->best_checkpoint());
  CHECK(weights_of(*run).equal(best));
  run->eval();  // not the averages of the end
  CHECK(run->get<Seen>().evaluated.back().equal(best));

  auto memory = make({0.1, 0.5, 0.4}, options("3ep"));
  memory->fit();
  memory->fit("1ep");
  CHECK(memory->load_best().empty());
  CHECK(weights_of(*memory).equal(memory->get<Seen>().evaluated[1]));
}

TEST_CASE("an evaluation with other weights leaves the model its own", "[train][best_weights]") {
  const TemporaryFolder folder;
  TrainerOptions plain = options("3ep");
  plain.restore_best = {};
  auto run = make({0.1, 0.5, 0.4}, plain, {.ema = true, .saver = (folder / "best").string()});
  CHECK_THROWS_WITH(run->eval({}, "best"), ContainsSubstring("there are no best weights"));
  run->fit();
  const at::Tensor own = weights_of(*run);
  auto& seen = run->get<Seen>().evaluated;
  const at::Tensor best = seen[1];
  const at::Tensor averages = seen[2];
  run->eval({{"other", tiny::batches(1)}}, "best");
  CHECK(seen.back().equal(best));
  CHECK(run->state().metric("other", "Accuracy") == 0.1);
  CHECK(weights_of(*run).equal(own));
  run->eval({}, run->best_checkpoint());
  CHECK(seen.back().equal(best));
  CHECK(weights_of(*run).equal(own));
  run->eval();
  CHECK(seen.back().equal(averages));
  CHECK_THROWS_WITH(run->eval({}, ""), ContainsSubstring("expected \"best\" or a checkpoint's"));
  CHECK_THROWS_WITH(run->eval({}, (folder / "none").string()), ContainsSubstring("none"));
  CHECK(weights_of(*run).equal(own));
}

TEST_CASE("a schedule-free optimizer's best weights are evaluated as they are",
          "[train][best_weights]") {
  const auto with = [](TrainerOptions out, bool sgd) {
    out.optimizer = sgd ? OptimizerSpec(ScheduleFreeSGD{.lr = 0.5})
                        : OptimizerSpec(ScheduleFreeAdamW{.lr = 0.2});
    return out;
  };
  for (const bool sgd : {false, true}) {
    auto run = make({0.1, 0.5, 0.4, 0.3}, with(options("4ep"), sgd));
    run->fit();
    auto& seen = run->get<Seen>().evaluated;
    const at::Tensor best = seen[1];
    CHECK_FALSE(best.equal(seen[3]));
    CHECK(weights_of(*run).equal(best));
    run->eval();
    CHECK(seen.back().equal(best));
    run->fit("1ep");
    CHECK_FALSE(seen.back().equal(best));
    CHECK(run->load_best().empty());
    run->eval();
    CHECK(seen.back().equal(best));
  }
  std::vector<at::Tensor> ends;
  for (const bool looks : {false, true}) {  // training goes on from what it had
    const TemporaryFolder folder;
    TrainerOptions plain = with(options("3ep"), false);
    plain.restore_best = {};
    auto run = make({0.1, 0.5, 0.4}, plain, {.saver = (folder / "best").string()});
    run->fit();
    auto& seen = run->get<Seen>().evaluated;
    const at::Tensor best = seen[1];
    const at::Tensor last = seen[2];
    const at::Tensor own = weights_of(*run);
    if (looks) {
      run->eval({}, "best");
      CHECK(seen.back().equal(best));
      CHECK(weights_of(*run).equal(own));
      run->eval();
      CHECK(seen.back().equal(last));
    }
    run->fit("1ep");
    ends.push_back(weights_of(*run));
  }
  CHECK(ends[0].equal(ends[1]));
}

TEST_CASE("what restore_best cannot watch is refused", "[train][best_weights]") {
  TrainerOptions half = options();
  half.restore_best.dataloader_label = "";
  CHECK_THROWS_WITH(make({0.1}, half),
                    ContainsSubstring("restore_best has the monitor \"Accuracy\" "
                                      "and the dataloader_label \"\"; they go"));
  TrainerOptions none = options();
  none.eval.clear();
  CHECK_THROWS_WITH(make({0.1}, none)->fit(),
                    ContainsSubstring("watches the evaluation set \"test\", and there is no "
                                      "evaluation set"));
  TrainerOptions other = options();
  other.restore_best.dataloader_label = "valid";
  CHECK_THROWS_WITH(make({0.1}, other)->fit(), ContainsSubstring("none of that name, but: test"));
  TrainerOptions never = options();
  never.eval_interval = "0ep";
  CHECK_THROWS_WITH(make({0.1}, never)->fit(), ContainsSubstring("whose interval is 0"));
  TrainerOptions metric = options();
  metric.restore_best.monitor = "Recall";
  CHECK_THROWS_WITH(make({0.1}, metric)->fit(),
                    ContainsSubstring("restore_best: the set \"test\" has no metric \"Recall\"; "
                                      "there are: Accuracy"));
}

TEST_CASE("weights that do not fit the model any more are refused whole", "[train][best_weights]") {
  const auto net = tiny::net();
  train::Weights weights = train::copy_weights(*net, true);
  weights.back().second = at::zeros({9});
  const at::Tensor before = tiny::flat(*net);
  CHECK_THROWS_WITH(train::give_weights(weights, *net), ContainsSubstring("do not fit the model"));
  CHECK(tiny::flat(*net).equal(before));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
