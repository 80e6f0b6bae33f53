#include <tutti/train/run_state.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/measured.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using tutti_test::Measured;
using Names = std::vector<std::string>;
using Rates = std::vector<double>;

namespace {

double lr(const State& state) {
  return state.optimizers[0]->param_groups()[0].options().get_lr();
}

// What save_run() saves and load_run() restores, without a run.
struct Bench {
  std::shared_ptr<tiny::Net> net = tiny::net();
  State state;
  train::Run run;
  RunLoadReport report;

  explicit Bench(const OptimizerSpec& optimizer = SGD{.lr = 0.1, .momentum = 0.9}) {
    state.model = net;
    state.communicator = std::make_shared<dist::SingleProcess>();
    state.optimizers = {optimizer.build(*net, net->parameters())};
    state.max_duration = "8ba";
    run.bind_schedule(state);
  }
  // Stands behind so many batches, scheduled and saved.
  Bench& after(std::int64_t batches) {
    state.timestamp.batch = batches;
    run.step_schedule(state, state.timestamp);
    return *this;
  }
  Archive saved(bool metrics = false) const {
    Archive out;
    train::save_run(state, run, nullptr, out, metrics);
    return out;
  }
  Bench& load(const Archive& archive) {
    train::load_run(state, run, nullptr, archive, report);
    return *this;
  }
};

TrainerOptions options() {
  return {.train = tiny::batches(8),
          .max_duration = "8ba",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .schedule = CosineAnnealing{},
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

struct Used final {
  Rates rates{};
  void apply(BatchStart, const State& state) { rates.push_back(lr(state)); }
};

// What the metrics of training are where an epoch ends.
struct SeenAtEpochEnd final {
  std::vector<MetricValues> values{};
  void apply(EpochEnd, const State& state) { values.push_back(state.train_metric_values); }
};

}  // namespace

TEST_CASE("time, seed and momentum come back, and the rank's own seed follows",
          "[train][run_state]") {
  Bench before;
  before.net->in->weight.mutable_grad() = at::ones({8, 4});
  before.state.optimizers[0]->step();
  before.state.rank_zero_seed = 17;
  before.state.timestamp = Timestamp{}.to_next_batch(8, 64, std::chrono::nanoseconds(5));
  const Archive saved = before.saved();
  Bench after;
  after.state.rank = 3;
  after.load(saved);
  CHECK(after.state.timestamp == before.state.timestamp);
  CHECK(after.state.previous_timestamp == before.state.timestamp);
  CHECK(after.state.rank_zero_seed == 17);
  CHECK(after.state.seed == 20);
  CHECK(after.report.restored == Names{"optimizers", "timestamp", "rank_zero_seed", "schedulers"});
  CHECK(after.report.afresh.empty());
  CHECK(after.report.notes.empty());
  const auto step = [](Bench& bench) {
    bench.net->in->weight.mutable_grad() = at::zeros({8, 4});
    const at::Tensor was = bench.net->in->weight.detach().clone();
    bench.state.optimizers[0]->step();
    return bench.net->in->weight.detach() - was;  // what the momentum alone does
  };
  const at::Tensor moved = step(after);
  CHECK(moved.abs().min().item<double>() > 0.01);
  CHECK(at::allclose(moved, step(before)));
}

TEST_CASE("what a checkpoint lacks starts afresh, and the report says so", "[train][run_state]") {
  Bench bench;
  bench.after(3).load(Archive());
  CHECK(bench.report.restored.empty());
  CHECK(bench.report.afresh == Names{"optimizers", "timestamp", "rank_zero_seed", "schedulers"});
  CHECK(bench.state.timestamp.batch == 3);
  CHECK(lr(bench.state) == 0.1);
  CHECK(bench.state.initial_lrs == Rates{0.1});
}

TEST_CASE("a checkpoint of other optimizers is refused", "[train][run_state]") {
  Bench two;
  two.state.optimizers.push_back(two.state.optimizers[0]);
  Bench one;
  CHECK_THROWS_WITH(one.load(two.saved()),
                    ContainsSubstring("the checkpoint has 2 optimizers, this run has 1"));
  const Archive saved = one.saved();
  Bench adam(AdamW{.lr = 0.01});
  CHECK_THROWS_WITH(adam.load(saved),
                    ContainsSubstring("put \"state/optimizers\" into load_ignore_keys"));
  Archive rates = saved;
  rates.erase("schedulers/initial_lrs");
  rates.put("schedulers/initial_lrs", Rates{0.1, 0.2});
  CHECK_THROWS_WITH(one.load(rates),
                    ContainsSubstring("the checkpoint has 2 learning rates, this run has 1; put "
                                      "\"state/schedulers\" into load_ignore_keys"));
}

TEST_CASE("learning rates go on as saved, and anew when the run's length has changed",
          "[train][run_state][schedule]") {
  Bench before;
  before.run.schedule = Linear{.alpha_f = 0};
  const Archive saved = before.after(4).saved();
  const std::vector<std::pair<Time, double>> expected{{Time("8ba"), 0.05},    // half of the way
                                                      {Time("16ba"), 0.075},  // a quarter
                                                      {Time(), 0.05}};        // not known yet
  for (const auto& [length, rate] : expected) {
    Bench after;
    after.run.schedule = before.run.schedule;
    after.state.max_duration = length;
    after.load(saved);
    CHECK(lr(after.state) == Approx(rate));
    CHECK(after.run.scheduled_at.batch == 4);
  }
}

TEST_CASE("a size that was found by trial comes back where one is looked for",
          "[train][run_state]") {
  Bench before;
  before.state.device_train_microbatch_size = 4;
  const Archive saved = before.saved();
  Bench automatic;
  automatic.state.auto_microbatching = true;
  CHECK(automatic.load(saved).state.device_train_microbatch_size == 4);
  Bench fixed;
  fixed.state.device_train_microbatch_size = 2;
  CHECK(fixed.load(saved).state.device_train_microbatch_size == 2);
}

TEST_CASE("a gradient scaler's scale comes back", "[train][run_state]") {
  Bench before;
  before.run.scaler.emplace(at::kCPU, train::GradScalerOptions{.init_scale = 8});
  const Archive saved = before.saved();
  Bench after;
  after.run.scaler.emplace(at::kCPU);
  CHECK(after.load(saved).run.scaler->get_scale() == 8);
  CHECK(after.report.restored.back() == "scaler");
  Bench without;
  CHECK_NOTHROW(without.load(saved));
  Bench afresh;
  afresh.run.scaler.emplace(at::kCPU);
  CHECK(afresh.load(without.saved()).run.scaler->get_scale() == 65536);
  CHECK(afresh.report.afresh == Names{"scaler"});
}

TEST_CASE("metrics of a set that this run lacks are left, and those that it has taken",
          "[train][run_state]") {
  const auto add_set = [](Bench& bench, const char* label) {
    train::EvalSet& set = bench.run.evals.emplace_back();
    set.label = label;
    set.metrics = train::MetricSet(Measured().metrics(false), {}, "");
  };
  Bench before;
  add_set(before, "test");
  add_set(before, "other");
  before.state.eval_metric_values = {{"test", {{"MSE", 2}}}, {"other", {{"MSE", 3}}}};
  const Archive saved = before.saved(/*metrics=*/true);
  CHECK_FALSE(before.saved().contains("eval_metrics"));
  Bench after;
  add_set(after, "test");
  after.load(saved);
  CHECK(after.state.eval_metric_values.size() == 1);
  CHECK(after.state.eval_metric_values.at("test").at("MSE") == 2);
  CHECK(after.report.restored.back() == "eval_metrics/test");
}

TEST_CASE("a run that goes on inside an epoch with other batches says where",
          "[train][run_state]") {
  const auto loader = [](std::int64_t size) {
    return TensorLoader{at::ones({20, 4}), at::ones({20, 2}), {.batch_size = size}};
  };
  const auto notes = [&](const DataSpec& data, std::int64_t batches, std::int64_t examples) {
    Bench before;
    before.state.timestamp.batch = before.state.timestamp.batch_in_epoch = batches;
    before.state.timestamp.sample_in_epoch = examples;
    Bench after;
    after.run.train = data;
    return after.load(before.saved()).report.notes;
  };
  CHECK(notes(loader(6), 3, 18).empty());
  REQUIRE(notes(loader(4), 3, 18).size() == 1);
  CHECK_THAT(notes(loader(4), 3, 18).front(),
             ContainsSubstring("after 3 batches of together 18 examples, and batches have 4 now") &&
                 ContainsSubstring("goes on at example 12 of its order"));
  CHECK(notes(loader(4), 0, 0).empty());          // at the end of an epoch
  CHECK(notes(loader(4), 4, 20).empty());         // the whole set was seen
  CHECK(notes(tiny::batches(8), 3, 18).empty());  // a range does not say how large its batches are
  CHECK(notes({}, 3, 18).empty());                // data may come later
  CHECK(notes({loader(4), {.num_samples = [](const Batch&) { return 6; }}}, 3, 18).empty());
  CHECK(notes({loader(4), {.batch_transform = [](Batch b) { return b; }}}, 3, 18).empty());
}

TEST_CASE("a run that goes on inside an epoch of other data says so", "[train][run_state]") {
  const auto notes = [](std::int64_t now, std::int64_t batches) {
    const auto loader = [](std::int64_t examples) {
      return TensorLoader{at::ones({examples, 4}), at::ones({examples, 2}), {.batch_size = 2}};
    };
    Bench before;
    before.state.timestamp.batch = before.state.timestamp.batch_in_epoch = batches;
    before.state.timestamp.sample_in_epoch = batches * 2;
    before.state.train_dataloader_len = 8;
    Bench after;
    after.run.train = loader(now * 2);
    after.state.train_dataloader_len = now;
    return after.load(before.saved()).report.notes;
  };
  CHECK(notes(8, 3).empty());
  CHECK(notes(5, 0).empty());
  REQUIRE(notes(5, 3).size() == 1);
  CHECK_THAT(notes(5, 3).front(),
             ContainsSubstring("after batch 3 of an epoch that had 8 and has 5 now") &&
                 ContainsSubstring("goes on behind as many batches"));
  REQUIRE(notes(3, 3).size() == 1);
  CHECK_THAT(notes(3, 3).front(), ContainsSubstring("nothing is left of this epoch"));
}

TEST_CASE("a run that goes on with longer or shorter epochs says where its schedule stands",
          "[train][run_state]") {
  const auto notes = [](std::int64_t length, bool scheduled) {
    Bench before;
    before.state.timestamp.batch = 24;
    before.state.timestamp.epoch = 1;
    Bench after;
    after.run.train = tiny::batches(8);
    after.state.train_dataloader_len = length;
    after.state.max_duration = "2ep";
    if (scheduled) {
      after.run.schedule = Step{"5ba"};
    }
    return after.load(before.saved()).report.notes;
  };
  CHECK(notes(24, true).empty());
  CHECK(notes(-1, true).empty());
  CHECK(notes(12, false).empty());
  REQUIRE(notes(12, true).size() == 1);
  CHECK_THAT(notes(12, true).front(), ContainsSubstring("24 batches behind it in 1 epochs") &&
                                          ContainsSubstring("that of batch 24 of 24"));
}

TEST_CASE("another optimizer is refused with the key to ignore", "[train][run_state]") {
  const TemporaryFolder folder;
  TrainerOptions first = options();
  first.max_duration = "4ba";
  first.save_folder = folder.path().string();
  Trainer<Used>(tiny::net(), first).fit();
  TrainerOptions rest = options();
  rest.max_duration = "6ba";
  rest.schedule = {};
  rest.optimizer = AdamW{.lr = 0.01};
  rest.load_path = (folder / "latest").string();
  CHECK_THROWS_WITH((Trainer<Used>{tiny::net(), rest}),
                    ContainsSubstring("put \"state/optimizers\" into load_ignore_keys"));
  for (const bool all : {true, false}) {  // a fresh optimizer has the rates of this program
    rest.load_ignore_keys = {"state/optimizers"};
    if (all) {
      rest.load_ignore_keys.emplace_back("state/schedulers");
    }
    Trainer<Used> trainer(tiny::net(), rest);
    CHECK(trainer.state().timestamp.batch == 4);
    CHECK(trainer.load_report().notes.empty());
    trainer.fit();
    CHECK(trainer.get<Used>().rates == Rates{0.01, 0.01});
  }
  rest.schedule = Step{"3ba", 0.5};
  Trainer<Used> trainer(tiny::net(), rest);
  trainer.fit();
  CHECK(trainer.get<Used>().rates == Rates{0.005, 0.005});
}

TEST_CASE("a further fit with other data is told what its schedule makes of epochs",
          "[train][run_state][schedule]") {
  TrainerOptions first = options();
  first.train = tiny::batches(4);
  first.max_duration = "2ep";
  first.schedule = Linear{};
  Trainer<> trainer(tiny::net(), first);
  trainer.fit();
  const Warnings warnings;
  trainer.fit({.duration = "2ep", .train = tiny::batches(2)});
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("8 batches behind it in 2 epochs, and an epoch has 2 now") &&
                 ContainsSubstring("that of batch 8 of 8; set reset_time"));
}

TEST_CASE("the learning rate is the checkpoint's unless schedulers are ignored",
          "[train][run_state][schedule]") {
  const TemporaryFolder folder;
  TrainerOptions first = options();
  first.save_folder = folder.path().string();
  first.save_interval = "4ba";
  Trainer<Used> whole(tiny::net(), first);
  whole.fit();
  const Rates& all = whole.get<Used>().rates;
  TrainerOptions rest = options();
  rest.load_path = (folder / "ep0-ba4").string();
  rest.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  {
    Warnings warnings;
    Trainer<Used> trainer(tiny::net(), rest);
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts[0],
               ContainsSubstring("the learning rate is the checkpoint's, 0.1, not this program's, "
                                 "0.05; to train with this program's, put \"state/schedulers\""));
    trainer.fit();
    CHECK(trainer.get<Used>().rates == Rates(all.begin() + 4, all.end()));
  }
  rest.load_ignore_keys = {"state/schedulers"};
  Trainer<Used> trainer(tiny::net(), rest);
  CHECK(trainer.load_report().restored[0] == "optimizers");  // momentum is kept
  trainer.fit();
  CHECK(trainer.get<Used>().rates[0] == Approx(all[5] / 2));  // as at construction, batch 4
  CHECK(trainer.get<Used>().rates[1] == Approx(all[5] / 2));
}

TEST_CASE("metrics are saved when asked for", "[train][run_state]") {
  const TemporaryFolder folder;
  TrainerOptions first = options();
  first.eval = {{"test", tiny::batches(2)}};
  first.max_duration = "4ba";
  first.eval_interval = "2ba";
  first.save_folder = folder.path().string();
  first.save_metrics = true;
  Trainer<Used> trainer(std::make_shared<Measured>(), first);
  trainer.fit();
  const auto values = trainer.state().eval_metric_values;
  REQUIRE(values.at("test").count("MSE") == 1);
  TrainerOptions rest = options();
  rest.load_path = (folder / "latest").string();
  rest.eval = first.eval;
  Trainer<Used> resumed(std::make_shared<Measured>(), rest);
  CHECK(resumed.state().eval_metric_values == values);
  CHECK(resumed.state().train_metric_values == trainer.state().train_metric_values);
}

TEST_CASE("an epoch that ends behind a checkpoint ends with its metrics", "[train][run_state]") {
  const TemporaryFolder folder;
  TrainerOptions first = options();
  first.train = tiny::batches(4);
  first.max_duration = "2ep";
  first.save_folder = folder.path().string();
  first.save_interval = "1ba";
  first.save_num_checkpoints_to_keep = -1;
  Trainer<SeenAtEpochEnd> whole(std::make_shared<Measured>(), first);
  whole.fit();
  const auto& expected = whole.get<SeenAtEpochEnd>().values;
  REQUIRE(expected.size() == 2);
  REQUIRE(expected[0].count("MSE") == 1);
  TrainerOptions rest = first;
  rest.save_folder = "";
  rest.load_path = (folder / "ep0-ba4").string();
  Trainer<SeenAtEpochEnd> resumed(std::make_shared<Measured>(), rest);
  const Warnings warnings;
  resumed.fit();
  CHECK(resumed.get<SeenAtEpochEnd>().values == expected);
  for (const std::string& each : warnings.texts) {
    CHECK_THAT(each, !ContainsSubstring("no batch has come"));
  }
}

TEST_CASE("what evaluations gave comes back in any case", "[train][run_state]") {
  const TemporaryFolder folder;
  TrainerOptions with = options();
  with.eval = {{"test", tiny::batches(2)}};
  with.max_duration = "4ba";
  with.eval_interval = "2ba";
  with.run_name = "whole";
  with.save_folder = folder.path().string();
  with.autoresume = true;
  double value = 0;
  {
    Trainer<Used> trainer(std::make_shared<Measured>(), with);
    trainer.fit();
    value = trainer.state().metric("test", "MSE");
  }
  with.eval[0].data = tiny::batches(0);  // would be refused
  Trainer<Used> again(std::make_shared<Measured>(), with);
  again.fit();  // nothing is left to train
  CHECK(again.state().metric("test", "MSE") == value);
}

TEST_CASE("a complete run evaluates what its last checkpoint is older than", "[train][run_state]") {
  const TemporaryFolder folder;
  TrainerOptions with = options();
  with.eval = {{"test", tiny::batches(2)}, {"never", tiny::batches(2), {.interval = "0ep"}}};
  with.max_duration = "4ba";
  with.eval_interval = "3ba";
  with.save_interval = "4ba";  // before the evaluation of the end
  with.run_name = "whole";
  with.save_folder = folder.path().string();
  with.autoresume = true;
  const auto value = [&] {
    Trainer<Used> trainer(std::make_shared<Measured>(), with);
    trainer.fit();
    CHECK_FALSE(trainer.state().eval_metric_values.contains("never"));
    return trainer.state().metric("test", "MSE");
  };
  const double first = value();
  CHECK(value() == first);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
