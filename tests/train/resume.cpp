#include <tutti/trainer.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/metrics/loss_metric.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/schedules.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

TrainerOptions options(Time length = "4ba") {
  return {.train = tiny::batches(8),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false};
}

TrainerOptions saving(const TemporaryFolder& folder, Time length = "4ba") {
  TrainerOptions out = options(length);
  out.save_folder = (folder / "{run_name}").string();
  out.save_interval = "2ba";
  return out;
}

TrainerOptions loading(const TemporaryFolder& folder, Time length = "6ba") {
  TrainerOptions out = options(length);
  out.load_path = (folder / "calm-motet/latest").string();
  return out;
}

double lr(const State& state) {
  return state.optimizers[0]->param_groups()[0].options().get_lr();
}

struct Rates final {
  std::vector<double> used;
  void apply(BatchStart, const State& state) { used.push_back(lr(state)); }
};
struct Counter final {
  int count = 0;
  void apply(BatchEnd, State&) { ++count; }
  void save(Archive& archive) const { archive.put("count", count); }
  void load(const Archive& archive) { count = archive.get<int>("count"); }
};
struct Doubler final {
  int twice = 0;
  void apply(BatchEnd, State&) { twice += 2; }
  void save(Archive& archive) const { archive.put("twice", twice); }
  void load(const Archive& archive) { twice = archive.get<int>("twice"); }
};
struct Wide : tiny::Net {  // another head
  Wide() { out = replace_module("out", torch::nn::Linear(8, 3)); }
};

struct Iterations final {
  std::vector<std::int64_t> ends{};  // at which batch
  void apply(IterationEnd, const State& state) { ends.push_back(state.timestamp.batch); }
};

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("a full load reports all parts as restored and nothing else", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<Counter>(tiny::net(), saving(folder)).fit();
  Warnings warnings;
  Trainer<Counter> trainer(tiny::net(2), loading(folder));
  const RunLoadReport& report = trainer.load_report();
  CHECK(report.complete());
  CHECK(report.restored == Names{"optimizers", "timestamp", "rank_zero_seed", "schedulers",
                                 "policies/Counter", "rng"});
  CHECK(report.model.loaded.size() == 4);
  CHECK_THAT(report.text(), ContainsSubstring("latest': 4 of 4 weights"));
  CHECK(warnings.texts.empty());
  CHECK(trainer.get<Counter>().count == 4);
  Trainer<Counter> none(tiny::net(), options());
  CHECK(none.load_report().path.empty());
  CHECK(none.load_report().text().empty());
}

TEST_CASE("another recipe takes what it has a place for and says the rest once",
          "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<Counter>(tiny::net(), saving(folder)).fit();
  Warnings warnings;
  Trainer<Doubler> trainer(tiny::net(2), loading(folder));
  CHECK(trainer.load_report().afresh == Names{"policies/Doubler"});
  CHECK(trainer.load_report().unused == Names{"policies/Counter"});
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("starting afresh: policies/Doubler") &&
                                    ContainsSubstring("no place for it: policies/Counter"));
  trainer.fit();
  CHECK(trainer.get<Doubler>().twice == 4);
}

TEST_CASE("ignored parts of a checkpoint start afresh", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<Counter>(tiny::net(), saving(folder)).fit();
  TrainerOptions rest = loading(folder);
  rest.load_ignore_keys = {"state/timestamp", "state/policies/*", "rng", "state/nothing"};
  Warnings warnings;
  Trainer<Counter> trainer(tiny::net(2), rest);
  CHECK(trainer.state().timestamp.batch == 0);
  CHECK(trainer.get<Counter>().count == 0);
  CHECK(trainer.load_report().ignored == Names{"state/timestamp", "state/policies/Counter", "rng"});
  CHECK(has(trainer.load_report().restored, "optimizers"));
  REQUIRE(warnings.texts.size() == 2);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("load_ignore_keys: nothing in the checkpoint matches") &&
                 ContainsSubstring("state/nothing"));
}

TEST_CASE("a new head loads strictly when the old one is ignored", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(folder)).fit();
  TrainerOptions rest = loading(folder);
  rest.load_ignore_keys = {"state/optimizers", "state/timestamp"};
  const auto load = [&] { Trainer<> trainer(std::make_shared<Wide>(), rest); };
  CHECK_THROWS_WITH(load(), ContainsSubstring("out.weight: shape [2, 8] in the file") &&
                                ContainsSubstring("load_ignore_keys = {\"state/model/fc.*\"}"));
  rest.load_ignore_keys.push_back("out.*");  // as LoadCheckpoint has it: no path here
  {
    Warnings warnings;
    CHECK_THROWS_WITH(load(), ContainsSubstring("do not fit the model"));
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts.front(),
               ContainsSubstring("nothing in the checkpoint matches \"out") &&
                   ContainsSubstring("state/model/fc.weight"));
  }
  rest.load_ignore_keys.push_back("state/model/out.*");
  Trainer<> trainer(std::make_shared<Wide>(), rest);
  CHECK(trainer.load_report().model.loaded == Names{"in.weight", "in.bias"});
}

TEST_CASE("strict holds in full loads and says which policies the recipe lacks",
          "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<Counter>(tiny::net(), saving(folder)).fit();
  TrainerOptions rest = loading(folder);
  rest.load_ignore_keys = {"state/optimizers"};
  const auto load = [&] { return Trainer<>(std::make_shared<Wide>(), rest).load_report(); };
  CHECK_THROWS_WITH(load(), ContainsSubstring("do not fit the model") &&
                                ContainsSubstring("policies that this one lacks: Counter"));
  rest.load_strict_model_weights = false;
  CHECK(load().model.mismatched.size() == 2);
}

TEST_CASE("another optimizer is refused with the key to ignore", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(folder)).fit();
  TrainerOptions rest = loading(folder);
  rest.optimizer = AdamW{.lr = 0.01};
  const auto load = [&] { Trainer<> trainer(tiny::net(), rest); };
  CHECK_THROWS_WITH(load(), ContainsSubstring("put \"state/optimizers\" into load_ignore_keys"));
  rest.load_ignore_keys = {"state/optimizers", "state/schedulers"};
  Trainer<Rates> trainer(tiny::net(), rest);
  CHECK(trainer.state().timestamp.batch == 4);
  trainer.fit();
  CHECK(trainer.get<Rates>().used == std::vector<double>{0.01, 0.01});
}

TEST_CASE("the learning rate is the checkpoint's unless schedulers are ignored",
          "[train][resume][schedule]") {
  const TemporaryFolder folder;
  TrainerOptions first = saving(folder, "8ba");
  first.schedule = CosineAnnealing{};
  Trainer<Rates> whole(tiny::net(), first);
  whole.fit();
  TrainerOptions rest = first;
  rest.save_folder = "";
  rest.load_path = (folder / "calm-motet/ep0-ba4").string();
  rest.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  {
    Warnings warnings;
    Trainer<Rates> trainer(tiny::net(), rest);
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts[0],
               ContainsSubstring("the learning rate is the checkpoint's, 0.1, not this program's, "
                                 "0.05; to train with this program's, put \"state/schedulers\""));
    trainer.fit();
    const auto& all = whole.get<Rates>().used;
    CHECK(trainer.get<Rates>().used == std::vector(all.begin() + 4, all.end()));
  }
  rest.load_ignore_keys = {"state/schedulers"};
  auto model = tiny::net();
  Trainer<Rates> trainer(model, rest);
  CHECK(has(trainer.load_report().restored, "optimizers"));  // momentum is kept
  trainer.fit();
  CHECK(trainer.get<Rates>().used[1] == Approx(whole.get<Rates>().used[5] / 2));
}

TEST_CASE("a run that goes on inside an epoch with other batches says where", "[train][resume]") {
  const TemporaryFolder folder;
  const auto loader = [](std::int64_t size) {
    return TensorLoader{at::ones({20, 4}), at::ones({20, 2}), {.batch_size = size}};
  };
  TrainerOptions first = saving(folder, "3ba");  // after the third of four batches, 18 examples
  first.train = loader(6);
  Trainer<>{tiny::net(), first}.fit();
  const auto notes = [&](const DataSpec& data) {
    TrainerOptions second = loading(folder, "6ba");
    second.train = data;
    Warnings quiet;
    return Trainer<>{tiny::net(), second}.load_report().notes;
  };
  CHECK(notes(loader(6)).empty());
  REQUIRE(notes(loader(4)).size() == 1);
  CHECK_THAT(notes(loader(4)).front(),
             ContainsSubstring("after 3 batches of together 18 examples, and batches have 4 now") &&
                 ContainsSubstring("goes on at example 12 of its order"));
  CHECK(notes(tiny::batches(8)).empty());  // a range does not say how large its batches are
  CHECK(notes(DataSpec{loader(4), {.num_samples = [](const Batch&) { return 6; }}}).empty());
}

TEST_CASE("a longer run is scheduled as if it had been that long from the start",
          "[train][resume][schedule]") {
  const TemporaryFolder folder;
  TrainerOptions first = saving(folder, "4ba");
  first.schedule = Linear{.alpha_f = 0};
  Trainer<>(tiny::net(), first).fit();
  TrainerOptions longer = options("8ba");
  longer.schedule = first.schedule;
  Trainer<Rates> whole(tiny::net(), longer);
  whole.fit();
  longer.load_path = (folder / "calm-motet/latest").string();
  Trainer<Rates> resumed(tiny::net(), longer);
  resumed.fit();
  const auto& all = whole.get<Rates>().used;
  CHECK(resumed.get<Rates>().used == std::vector(all.begin() + 4, all.end()));

  TrainerOptions half = options("4ba");  // the same in one process
  half.schedule = first.schedule;
  Trainer<Rates> twice(tiny::net(), half);
  twice.fit();
  twice.fit({.duration = "4ba"});
  CHECK(twice.get<Rates>().used.at(4) == all.at(4));
}

TEST_CASE("a run that is named goes on where its folder says", "[train][resume][autoresume]") {
  const TemporaryFolder folder;
  auto uninterrupted = tiny::net(1, 0.5);
  Trainer<Counter>(uninterrupted, options("6ba")).fit();
  TrainerOptions again = saving(folder, "4ba");
  again.autoresume = true;
  again.load_weights_only = true;  // of account for load_path only
  again.load_ignore_keys = {"state/*"};
  Trainer<Counter>(tiny::net(1, 0.5), again).fit();  // finds nothing: begins
  again.max_duration = "6ba";
  auto resumed = tiny::net(5, 0.5);
  Trainer<Counter> trainer(resumed, again);
  CHECK_THAT(trainer.load_report().path, ContainsSubstring("ep0-ba4"));
  CHECK_FALSE(trainer.load_report().weights_only);
  trainer.fit();
  CHECK(trainer.get<Counter>().count == 6);
  CHECK(at::equal(tiny::flat(*uninterrupted), tiny::flat(*resumed)));

  Warnings warnings;
  Trainer<Counter> complete(tiny::net(), again);  // a job that is started once too often
  complete.fit();
  CHECK(complete.get<Counter>().count == 6);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("is complete"));

  again.save_latest_filename = "";
  CHECK_THROWS_WITH((Trainer<Counter>{tiny::net(), again}),
                    ContainsSubstring("save_latest_filename is empty"));
}

TEST_CASE("autoresume falls back to load_path with its options", "[train][resume][autoresume]") {
  const TemporaryFolder other;
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(other)).fit();
  TrainerOptions begin = saving(folder);
  begin.autoresume = true;
  begin.load_path = (other / "calm-motet/latest").string();
  begin.load_weights_only = true;
  Trainer<> trainer(tiny::net(2), begin);
  CHECK(trainer.load_report().weights_only);
  CHECK(trainer.state().timestamp.batch == 0);
}

TEST_CASE("a checkpoint newer than the pointer is no obstacle to going on", "[train][resume]") {
  const TemporaryFolder folder;
  Trainer<>(tiny::net(), saving(folder)).fit();
  fs::remove(folder / "calm-motet/latest");  // as if killed between the two
  fs::create_symlink("ep0-ba2", folder / "calm-motet/latest");
  TrainerOptions rest = saving(folder);
  rest.load_path = (folder / "calm-motet/latest").string();
  Trainer<> trainer(tiny::net(), rest);
  CHECK_NOTHROW(trainer.fit());
  rest.load_path = (folder / "calm-motet/ep0-ba2").string();  // chosen by hand: is it meant?
  Trainer<> by_hand(tiny::net(), rest);
  CHECK_THROWS_WITH(by_hand.fit(), ContainsSubstring("is from batch 4, later than"));
}

TEST_CASE("keys ignored when saving are not in the file", "[train][resume]") {
  const TemporaryFolder folder;
  TrainerOptions small = saving(folder);
  small.save_ignore_keys = {"state/optimizers", "state/model/out.*", "state/optimiser"};
  Warnings warnings;
  Trainer<>(tiny::net(), small).fit();
  REQUIRE(warnings.texts.size() == 1);  // though it saves twice
  CHECK_THAT(warnings.texts[0], ContainsSubstring("save_ignore_keys: nothing"));
  const auto saved = checkpoint::read_snapshot(folder / "calm-motet/latest");
  CHECK(saved.model.names() == Names{"in.weight", "in.bias"});
  CHECK_FALSE(saved.state.contains("optimizers"));
  CHECK(saved.state.contains("timestamp"));
  CHECK(saved.state.contains("rng/0/libtorch/cpu"));
}

TEST_CASE("metrics are saved when asked for", "[train][resume]") {
  const TemporaryFolder folder;
  struct Measured : tiny::Net {
    using tiny::Net::Net;
    Metrics metrics(bool) const { return {std::make_shared<LossMetric>(mse, "MSE")}; }
    static at::Tensor mse(const at::Tensor& outputs, const at::Tensor& targets) {
      return (outputs - targets).pow(2).mean();
    }
    Outputs eval_forward(const Batch& batch) { return forward(batch); }
    void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) {
      metric.update(outputs.tensor(), batch.targets());
    }
  };
  TrainerOptions first = saving(folder);
  first.eval = {{"test", tiny::batches(2)}};
  first.eval_interval = "2ba";
  first.save_metrics = true;
  Trainer<> trainer(std::make_shared<Measured>(), first);
  trainer.fit();
  const auto values = trainer.state().eval_metric_values;
  REQUIRE(values.at("test").count("MSE") == 1);
  TrainerOptions rest = loading(folder);
  rest.eval = first.eval;
  Trainer<> resumed(std::make_shared<Measured>(), rest);
  CHECK(resumed.state().eval_metric_values == values);
  CHECK(resumed.state().train_metric_values == trainer.state().train_metric_values);
  CHECK(has(resumed.load_report().restored, "eval_metrics/test"));
}

TEST_CASE("an iteration that ended at the checkpoint ends when the run is resumed",
          "[train][resume]") {
  for (const bool tokens : {false, true}) {
    const TemporaryFolder folder;
    const auto set = [tokens](TrainerOptions options) {
      options.train.hooks.num_tokens = [](const Batch&) { return TokenCount{10}; };
      options.iteration_length = tokens ? Time(40, TimeUnit::token) : Time(1, TimeUnit::epoch);
      return options;
    };
    const Time whole(24, TimeUnit::batch);
    TrainerOptions first = set(saving(folder, whole));
    first.save_interval = tokens ? "4ba"_t : "1ep"_t;  // eight batches an epoch
    first.save_latest_filename = "";
    Trainer<Iterations> uninterrupted(tiny::net(), first);
    uninterrupted.fit();
    const std::vector<std::int64_t> all = uninterrupted.get<Iterations>().ends;
    REQUIRE(all.size() == (tokens ? 6 : 3));
    TrainerOptions rest = set(options(whole));
    rest.load_path = (folder / (tokens ? "calm-motet/ep0-ba4" : "calm-motet/ep1-ba8")).string();
    Trainer<Iterations> resumed(tiny::net(), rest);
    resumed.fit();
    CHECK(resumed.get<Iterations>().ends == all);  // the first of them again: it came after saving
  }
}
