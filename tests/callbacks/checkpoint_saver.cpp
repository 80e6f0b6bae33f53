#include <tutti/callbacks/checkpoint_saver.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/algorithms/ema.hpp>
#include <tutti/core/switch.hpp>
#include <tutti/core/trace.hpp>
#include <tutti/metrics/loss_metric.hpp>
#include <tutti/trainer.hpp>

#include "callbacks/run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

static_assert(Callback<CheckpointSaver>);

namespace {

// A network whose evaluation metric is what the test says, evaluation after evaluation.
struct Graded : tiny::Net {
  std::vector<double> grades;
  std::size_t next = 0;

  explicit Graded(std::vector<double> values) : grades(std::move(values)) {}
  Metrics metrics(bool train) const {
    return train ? Metrics{} : Metrics{std::make_shared<LossMetric>(mean, "Grade")};
  }
  static at::Tensor mean(const at::Tensor& outputs, const at::Tensor&) { return outputs.mean(); }
  Outputs eval_forward(const Batch&) { return at::full({2}, grades.at(next++)); }
  void update_metric(const Batch& batch, const Outputs& outputs, Metric& metric) {
    metric.update(outputs.tensor(), batch.targets());
  }
};

std::shared_ptr<Graded> graded(std::vector<double> grades) {
  at::manual_seed(1);
  return std::make_shared<Graded>(std::move(grades));
}

TrainerOptions options(const TemporaryFolder& folder, Time length = "6ba") {
  return {.train = tiny::batches(8),
          .eval = {{"test", tiny::batches(1)}},
          .max_duration = length,
          .eval_interval = "1ba",
          .optimizer = SGD{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false,
          .save_folder = (folder / "own").string(),
          .save_interval = "3ba"};
}

CheckpointSaver best(const TemporaryFolder& folder) {
  return {.folder = (folder / "{run_name}").string(),
          .num_checkpoints_to_keep = 2,
          .monitor = "Grade",
          .dataloader_label = "test",
          .mode = MonitorMode::max};
}

}  // namespace

TEST_CASE("the best checkpoints are kept beside those of the interval",
          "[callbacks][checkpoint_saver]") {
  const TemporaryFolder folder;
  Trainer trainer(graded({0.1, 0.5, 0.3, 0.4, 0.2, 0.9}), options(folder), best(folder), Trace{});
  trainer.fit();
  CHECK(sorted_names(folder / "own") == Names{"ep0-ba3", "ep0-ba6", "latest"});
  CHECK(sorted_names(folder / "calm-motet") == Names{"best", "ep0-ba2", "ep0-ba6"});
  CHECK(fs::read_symlink(folder / "calm-motet/best") == "ep0-ba6");
  CHECK(trainer.get<CheckpointSaver>().saved() ==
        Names{(folder / "calm-motet/ep0-ba2").string(), (folder / "calm-motet/ep0-ba6").string()});
  Names saves;
  for (const auto& line : trainer.get<Trace>().lines) {
    if (line.find(">save:") != std::string::npos) {
      saves.push_back(line);
    }
  }
  CHECK(saves == Names{"batch_checkpoint>save:ep0-ba1", "batch_checkpoint>save:ep0-ba2",
                       "batch_checkpoint>save:ep0-ba3", "batch_checkpoint>save:ep0-ba3",
                       "batch_checkpoint>save:ep0-ba4", "batch_checkpoint>save:ep0-ba6",
                       "batch_checkpoint>save:ep0-ba6"});
}

TEST_CASE("an evaluation outside fit makes no later weights the best",
          "[callbacks][checkpoint_saver]") {
  const TemporaryFolder folder;
  TrainerOptions seldom = options(folder, "4ba");
  seldom.eval_interval = "2ba";
  Trainer trainer(graded({0.9, 0.1, 0.3}), seldom, best(folder));
  trainer.eval();
  trainer.fit();
  CHECK(sorted_names(folder / "calm-motet") == Names{"best", "ep0-ba2", "ep0-ba4"});
  CHECK(fs::read_symlink(folder / "calm-motet/best") == "ep0-ba4");
}

TEST_CASE("the ranking goes on in a resumed run", "[callbacks][checkpoint_saver][resume]") {
  const TemporaryFolder folder;
  Trainer(graded({0.6, 0.5, 0.1}), options(folder, "3ba"), best(folder)).fit();
  TrainerOptions rest = options(folder);
  rest.load_path = (folder / "own/latest").string();
  Trainer trainer(graded({0.4, 0.55, 0.2}), rest, best(folder));
  trainer.fit();
  CHECK(sorted_names(folder / "calm-motet") == Names{"best", "ep0-ba1", "ep0-ba5"});
  CHECK(fs::read_symlink(folder / "calm-motet/best") == "ep0-ba1");
}

TEST_CASE(
    "an evaluation at the end of an epoch saves at its checkpoint event, averaged weights too",
    "[callbacks][checkpoint_saver][ema]") {
  const TemporaryFolder folder;
  TrainerOptions epochs = options(folder, "1ep");
  epochs.eval_interval = "1ep";
  epochs.save_folder = "";
  auto model = graded({0.5});
  Trainer trainer(model, epochs, EMA{.smoothing = 0.9}, best(folder));
  trainer.fit();
  CHECK(sorted_names(folder / "calm-motet") == Names{"best", "ep1-ba8"});
  const auto saved = checkpoint::read_snapshot(folder / "calm-motet/best");
  const auto averages = trainer.get<EMA>().averages();
  REQUIRE(!averages.empty());
  CHECK(at::equal(saved.model.tensor(averages[0].first), averages[0].second));
  CHECK_FALSE(at::equal(saved.model.tensor("in.weight"), model->in->weight));
}

TEST_CASE("a second interval with weights alone", "[callbacks][checkpoint_saver]") {
  const TemporaryFolder folder;
  TrainerOptions plain = options(folder);
  plain.eval.clear();
  Trainer trainer(tiny::net(), plain,
                  CheckpointSaver{.folder = (folder / "weights").string(),
                                  .save_interval = "2ba",
                                  .weights_only = true,
                                  .num_checkpoints_to_keep = 1});
  trainer.fit();
  CHECK(sorted_names(folder / "weights") == Names{"ep0-ba6", "latest"});
  CHECK(sorted_names(folder / "weights/ep0-ba6") == Names{"manifest.json", "model.safetensors"});
}

TEST_CASE(
    "several savers stand in one recipe, each with a list of its own that a resumed run keeps",
    "[callbacks][checkpoint_saver][resume]") {
  const TemporaryFolder folder;
  using Second = Named<"weights", CheckpointSaver>;
  const auto weights = [&] {
    return named<"weights">(CheckpointSaver{.folder = (folder / "weights").string(),
                                            .save_interval = "2ba",
                                            .weights_only = true,
                                            .num_checkpoints_to_keep = 2});
  };
  Trainer(graded({0.6, 0.5, 0.1}), options(folder, "3ba"), best(folder), weights()).fit();
  TrainerOptions rest = options(folder);
  rest.load_path = (folder / "own/latest").string();
  Trainer trainer(graded({0.4, 0.55, 0.2}), rest, best(folder), weights());
  CHECK(trainer.get<Second>().policy.saved().size() == 2);
  trainer.fit();
  CHECK(sorted_names(folder / "calm-motet") == Names{"best", "ep0-ba1", "ep0-ba5"});
  CHECK(sorted_names(folder / "weights") == Names{"ep0-ba4", "ep0-ba6", "latest"});
  CHECK(trainer.load_report().complete());
}

TEST_CASE("a monitor that is never evaluated is told of", "[callbacks][checkpoint_saver]") {
  const TemporaryFolder folder;
  TrainerOptions plain = options(folder);
  plain.eval.clear();
  Warnings warnings;
  Trainer trainer(tiny::net(), plain, best(folder));
  trainer.fit();
  CHECK(warnings.texts.empty());
  trainer.close();
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("no evaluation set called \"test\""));
}

TEST_CASE("a monitor's label that no set has, and a direction that is not known, are told at once",
          "[callbacks][checkpoint_saver]") {
  const TemporaryFolder folder;
  CheckpointSaver saver = best(folder);
  saver.dataloader_label = "tset";
  saver.monitor = "latency";
  saver.mode = MonitorMode::by_name;
  Warnings warnings;
  Trainer trainer(tiny::net(), options(folder), saver);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("CheckpointSaver: the name \"latency\" does not say") &&
                 ContainsSubstring("mode = MonitorMode::min if it is not"));
  trainer.fit();
  REQUIRE(warnings.texts.size() == 2);
  CHECK_THAT(warnings.texts[1], ContainsSubstring("CheckpointSaver: dataloader_label is \"tset\""));
}

TEST_CASE("without a mode the metric's name says which checkpoint is the best",
          "[callbacks][checkpoint_saver]") {
  const auto kept = [](const char* metric) {
    const TemporaryFolder folder;
    auto net = callback_run::metric_net({0.4, 0.6, 0.2});
    net->metric = metric;
    TrainerOptions plain = callback_run::options(1, "3ep");
    plain.eval = {{"test", tiny::batches(1)}};
    Trainer trainer(
        net, plain,
        CheckpointSaver{
            .folder = (folder / "best").string(), .monitor = metric, .dataloader_label = "test"});
    trainer.fit();
    const auto saved = trainer.get<CheckpointSaver>().saved();
    return saved.size() == 1 ? saved[0].substr(saved[0].rfind('/') + 1) : std::string();
  };
  CHECK(kept("Accuracy") == "ep2-ba2");
  CHECK(kept("MAE") == "ep3-ba3");
}

TEST_CASE("a run that failed before its first evaluation is not told so",
          "[callbacks][checkpoint_saver]") {
  struct Fails final {
    void apply(BatchEnd, State&) const { throw std::runtime_error("the disk is full"); }
  };
  const TemporaryFolder folder;
  Warnings warnings;
  {
    Trainer trainer(tiny::net(), options(folder), best(folder), Fails{});
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("the disk is full"));
  }
  CHECK(warnings.texts.empty());
}

TEST_CASE("options of the saver that make no sense are refused", "[callbacks][checkpoint_saver]") {
  const TemporaryFolder folder;
  const auto refuse = [&](CheckpointSaver saver) {
    Trainer trainer(tiny::net(), options(folder), std::move(saver));
  };
  CheckpointSaver bad = best(folder);
  bad.dataloader_label = "";
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("monitor and dataloader_label go together"));
  bad = best(folder);
  bad.num_checkpoints_to_keep = 0;
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("num_checkpoints_to_keep is 0, expected -1"));
  bad = best(folder);
  bad.filename = "a/b";
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("filename is a/b, expected a name"));
  bad = best(folder);
  bad.folder = (folder / "own").string();
  CHECK_THROWS_WITH(refuse(bad), ContainsSubstring("two savers write into the folder"));
  bad = best(folder);
  bad.monitor = "Mark";
  const auto run = [&] {
    Trainer trainer(graded({0.1}), options(folder, "1ba"), bad);
    trainer.fit();
  };
  CHECK_THROWS_WITH(run(),
                    ContainsSubstring("monitor is \"Mark\", but the set \"test\" has Grade"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
