#include <tutti/train/dry_run.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/callbacks/early_stopper.hpp>
#include <tutti/callbacks/remote_uploader.hpp>
#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/loggers/file.hpp>
#include <tutti/loggers/json_lines.hpp>
#include <tutti/loggers/tensorboard.hpp>
#include <tutti/trainer.hpp>

#include "callbacks/run.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using callback_run::metric_net;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

// Notes what is trained and evaluated.
struct Seen final {
  static constexpr std::string_view name = "Seen";
  std::vector<double> trained{}, evaluated{};
  void apply(BatchStart, const State& state) {
    trained.push_back(state.batch.inputs().sum().item<double>());
  }
  void apply(EvalBatchStart, const State& state) {
    evaluated.push_back(state.batch.inputs().sum().item<double>());
  }
};

std::vector<double> sums(int count) {
  std::vector<double> out;
  for (const Batch& batch : tiny::batches(9)) {
    out.push_back(batch.inputs().sum().item<double>());
  }
  out.resize(static_cast<std::size_t>(count));
  return out;
}

TrainerOptions options(Time length = "3ep") {
  TrainerOptions out = callback_run::options(9, length);
  out.eval = {{"test", tiny::batches(9)}};
  return out;
}

using Plain = Trainer<Seen, EarlyStopper>;
std::unique_ptr<Plain> make(TrainerOptions with, std::vector<double> grades = {0.5}) {
  return std::make_unique<Plain>(metric_net(std::move(grades)), std::move(with), Seen{},
                                 EarlyStopper{.monitor = "Accuracy", .dataloader_label = "test"});
}

}  // namespace

TEST_CASE("a dry run trains and evaluates so many batches of everything and leaves no file",
          "[train][dry_run]") {
  const TemporaryFolder folder, temporary;
  const EnvironmentVariable tmpdir("TMPDIR", temporary.path().c_str());
  const std::string out = (folder / "run").string();
  fs::create_directories(folder / "store");
  {
    TrainerOptions dry = options("90ep");
    dry.dry_run = 2;
    dry.eval_interval = "20ep";
    dry.run_folder = out;
    dry.run_name = "calm-motet";
    dry.autoresume = true;
    Trainer trainer{metric_net({0.5}),
                    dry,
                    Seen{},
                    FileLogger{.filename = out + "/log.txt"},
                    JSONLinesLogger{.filename = "{run_folder}/metrics.jsonl"},
                    TensorBoardLogger{},
                    CheckpointSaver{.folder = (folder / "best").string(),
                                    .monitor = "Accuracy",
                                    .dataloader_label = "test",
                                    .mode = MonitorMode::max},
                    RemoteUploader{.object_store = LocalObjectStore{(folder / "store").string()}}};
    trainer.fit();
    CHECK(trainer.get<Seen>().trained == sums(2));
    CHECK(trainer.get<Seen>().evaluated == sums(2));
    CHECK(trainer.state().timestamp.batch == 2);
    CHECK(trainer.state().timestamp == "2ba"_t);
    // all was written, elsewhere
    REQUIRE(sorted_names(temporary.path()).size() == 1);
    const fs::path scratch = temporary / sorted_names(temporary.path()).front();
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(scratch)) {
      files.push_back(entry.path().filename().string());
    }
    for (const char* name : {"log.txt", "metrics.jsonl", "model.safetensors", "best"}) {
      CAPTURE(name);
      CHECK(std::find(files.begin(), files.end(), name) != files.end());
    }
    trainer.save_checkpoint((folder / "own").string());
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("nothing is left to train"));
  }
  CHECK(sorted_names(folder.path()) == std::vector<std::string>{"store"});
  CHECK(fs::is_empty(folder / "store"));
  CHECK(fs::is_empty(temporary.path()));
}

TEST_CASE("overfitting takes the same batches in every epoch, also of a shuffled loader",
          "[train][dry_run]") {
  TrainerOptions few = options();
  few.overfit_batches = 2;
  auto run = make(few);
  run->fit();
  const auto& trained = run->get<Seen>().trained;
  REQUIRE(trained.size() == 6);
  CHECK(std::vector(trained.begin(), trained.begin() + 2) == sums(2));
  CHECK(std::vector(trained.begin() + 4, trained.end()) == sums(2));
  CHECK(run->get<Seen>().evaluated.size() == 6);

  at::manual_seed(5);
  few.train = TensorLoader(at::randn({12, 4}), at::randn({12, 2}),
                           {.batch_size = 2, .shuffle = true, .seed = 1});
  auto shuffled = make(few);
  shuffled->fit();
  const auto& same = shuffled->get<Seen>().trained;
  REQUIRE(same.size() == 6);
  CHECK(same[0] == same[2]);
  CHECK(same[1] == same[5]);
  CHECK(same[0] != same[1]);
}

TEST_CASE("a sanity evaluation comes before the first batch and changes nothing",
          "[train][dry_run]") {
  TrainerOptions checked = options("2ep");
  checked.sanity_eval = 2;
  auto run = make(checked, {0.9, 0.5, 0.6});  // the first value would be the best one
  run->fit();
  std::vector<double> expected = sums(2);
  for (int i = 0; i < 2; ++i) {
    const std::vector<double> all = sums(9);
    expected.insert(expected.end(), all.begin(), all.end());
  }
  CHECK(run->get<Seen>().evaluated == expected);
  CHECK(*run->get<EarlyStopper>().run.best == 0.6);
  auto plain = make(options("2ep"), {0.5, 0.6});
  plain->fit();
  CHECK(tiny::flat(*run->state().model).equal(tiny::flat(*plain->state().model)));
  run->fit("1ep");  // not once more
  CHECK(run->get<Seen>().evaluated.size() == expected.size() + 9);
}

TEST_CASE("policies cannot stop a run before its min_duration", "[train][dry_run]") {
  const std::vector<double> falling{0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1};
  auto soon = make(options("9ep"), falling);
  soon->fit();
  CHECK(soon->state().timestamp.epoch == 3);  // patience 1ep
  for (const Time least : {"5ep"_t, "45ba"_t, "0.55dur"_t}) {
    CAPTURE(least);
    TrainerOptions long_one = options("9ep");
    long_one.min_duration = least;
    auto run = make(long_one, falling);
    run->fit();
    CHECK(run->state().timestamp.epoch == 5);
  }
}

TEST_CASE("a gradient that is nan ends the run with the operator and the parameters",
          "[train][dry_run]") {
  const Warnings warnings;
  struct Root : tiny::Net {
    Loss loss(const Outputs& outputs, const Batch& batch) {
      const at::Tensor wrong = (outputs.tensor() - batch.targets()).mul(0);
      return wrong.sqrt().sum() * 0;  // 0 times an infinite slope
    }
  };
  TrainerOptions looks = callback_run::options(2, "1ep");
  looks.detect_anomaly = true;
  Trainer<Seen> trainer{std::make_shared<Root>(), looks};
  CHECK_THROWS_WITH(
      trainer.fit(),
      ContainsSubstring("detect_anomaly: Function 'SqrtBackward0' returned nan values in its 0th "
                        "output. That was in batch 0 of the run, epoch 0, whose loss is 0. Weights "
                        "that are not finite: none; gradients so far: none"));
  CHECK_FALSE(torch::autograd::AnomalyMode::is_enabled());
  // without it the run goes on, and ends with weights that are no numbers
  TrainerOptions plain = callback_run::options(2, "1ep");
  Trainer<Seen> lets{std::make_shared<Root>(), plain};
  lets.fit();
  CHECK_FALSE(tiny::flat(*lets.state().model).isfinite().all().item<bool>());
}

TEST_CASE("options for trying out that make no sense are refused", "[train][dry_run]") {
  TrainerOptions wrong = options();
  wrong.dry_run = -1;
  CHECK_THROWS_WITH(make(wrong), ContainsSubstring("dry_run is -1, expected 0 (no) or a number"));
  wrong = options();
  wrong.overfit_batches = 2;
  wrong.train_subset_num_batches = 3;
  CHECK_THROWS_WITH(make(wrong), ContainsSubstring("both say how many batches make an epoch"));
  wrong = options();
  wrong.sanity_eval = 2;
  wrong.eval.clear();
  CHECK_THROWS_WITH(make(wrong)->fit(), ContainsSubstring("sanity_eval is 2, but there is no"));
  wrong = options();
  wrong.detect_anomaly = true;
  wrong.cuda_graphs = true;
  CHECK_THROWS_WITH(make(wrong), ContainsSubstring("set cuda_graphs to false"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
