#include <tutti/train/run_checkpoints.hpp>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <tutti/train/options.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
using train::RunCheckpoints;
namespace fs = std::filesystem;

namespace {

// Notes what it is asked, and does what it is told to.
struct Mirror final : checkpoint::Mirror {
  void written(const std::string& path, const std::string&) noexcept override {
    calls.push_back("written " + fs::path(path).filename().string());
  }
  bool failed() const noexcept override { return !error.empty(); }
  void check() override { TORCH_CHECK(error.empty(), error); }
  bool wait(std::chrono::milliseconds) override {
    calls.push_back("wait");
    return --waits < 0;
  }
  bool fetch_latest(const std::string& folder, const std::string& latest) override {
    calls.push_back("fetch " + latest);
    if (!kept.empty()) {
      fs::create_directories(folder);
      fs::rename(kept, folder + "/ba4");
      checkpoint::point_latest(folder + "/" + latest, "ba4");
    }
    return !kept.empty();
  }
  bool fetch(const std::string& uri, const std::string& target) override {
    if (uri != "s3://a") {
      return false;
    }
    fs::rename(kept, target);
    return true;
  }
  std::string error;
  std::string kept;  // a checkpoint that it has
  int waits = 0;     // in vain
  Names calls;
};

// A run without a trainer: one layer at batch 4.
struct Fixture {
  Fixture() {
    state.model = std::make_shared<torch::nn::LinearImpl>(2, 3);
    state.communicator = std::make_shared<dist::SingleProcess>();
    state.run_name = "calm-motet";
    at_batch(4);
  }
  void at_batch(std::int64_t batch) {
    state.timestamp.batch = batch;
    state.previous_timestamp.batch = batch - 1;
  }
  TrainerOptions options() const {
    TrainerOptions out;
    out.save_folder = (folder / "{run_name}").string();
    out.save_filename = "ba{batch}";
    out.save_interval = "2ba";
    return out;
  }
  std::string saved() const { return (folder / "calm-motet").string(); }

  // Writes the checkpoint of this moment as `path`.
  void write(const std::string& path) {
    RunCheckpoints writer(state, run);
    writer.open(TrainerOptions{}, {});
    writer.save(path, false);
  }

  TemporaryFolder folder;
  State state;
  train::Run run;
};

void fill(const State& state, double value) {
  const c10::AutoGradMode no_grad(false);
  state.model->parameters().front().fill_(value);
}

checkpoint::SaverOptions every(const fs::path& folder, Time interval) {
  return {.folder = folder.string(), .filename = "ba{batch}", .interval = interval};
}

}  // namespace

TEST_CASE("savers that are due at one moment write one after the other, the options' own first",
          "[train][run_checkpoints]") {
  Fixture a;
  checkpoint::Saver second(every(a.folder / "second", "4ba"), a.state);
  checkpoint::Saver third(every(a.folder / "third", "3ba"), a.state);
  RunCheckpoints checkpoints(a.state, a.run);
  checkpoints.open(a.options(), {{.name = "B", .saver = &second}, {.name = "C", .saver = &third}});
  CHECK(checkpoints.save_next().empty());
  CHECK(checkpoints.due(BatchCheckpoint{}, false));
  CHECK(checkpoints.save_next() == "ba4");
  const Names written{checkpoint::FolderLock::filename, "ba4", "latest"};
  CHECK(sorted_names(a.saved()) == written);
  CHECK_FALSE(fs::exists(a.folder / "second"));
  CHECK(checkpoints.save_next() == "ba4");
  CHECK(sorted_names(a.folder / "second") == written);
  CHECK(checkpoints.save_next().empty());
  CHECK_FALSE(fs::exists(a.folder / "third"));

  CHECK_FALSE(checkpoints.due(BatchCheckpoint{}, false));  // once per batch
  CHECK(checkpoints.due(FitEnd{}, true));                  // the third has not yet
  CHECK(checkpoints.save_next() == "ba4");
  CHECK(checkpoints.save_next().empty());
  checkpoints.restart();
  CHECK(checkpoints.due(FitEnd{}, true));
}

TEST_CASE("a checkpoint holds what policies give the model for it, and only the checkpoint does",
          "[train][run_checkpoints]") {
  const auto all_are = [](const at::Tensor& weights, double value) {
    return weights.eq(value).all().item<bool>();
  };
  for (const bool async : {false, true}) {
    Fixture a;
    fill(a.state, 1);
    const at::Tensor weights = a.state.model->parameters().front();
    TrainerOptions options = a.options();
    options.save_async = async;
    RunCheckpoints checkpoints(a.state, a.run);
    checkpoints.open(options, {{.name = "A",
                                .enter_checkpoint = [](void*, State& state) { fill(state, 7); },
                                .leave_checkpoint = [](void*, State& state) { fill(state, 1); }}});
    REQUIRE(checkpoints.due(BatchCheckpoint{}, false));
    CHECK(checkpoints.save_next() == "ba4");
    CHECK(all_are(weights, 1));
    checkpoints.wait();
    CHECK(all_are(checkpoint::read_snapshot(a.saved() + "/ba4").model.tensor("weight"), 7));

    const std::string own = (a.folder / "own").string();
    checkpoints.save(own, true);
    CHECK(all_are(weights, 1));
    CHECK(all_are(checkpoint::read_snapshot(own).model.tensor("weight"), 7));
    CHECK_THROWS(checkpoints.save(own, true));  // is there already
    CHECK(all_are(weights, 1));
  }
}

TEST_CASE("two savers of a run may not share a folder", "[train][run_checkpoints]") {
  Fixture a;
  checkpoint::Saver same(every(a.saved(), "4ba"), a.state);
  checkpoint::Saver other(every(a.folder / "other", "4ba"), a.state);
  checkpoint::Saver twin(every(a.folder / "other", "2ba"), a.state);
  const auto open = [&](const TrainerOptions& options, const train::PolicyStates& policies) {
    RunCheckpoints(a.state, a.run).open(options, policies);
  };
  CHECK_NOTHROW(open(a.options(), {{.name = "B", .saver = &other}}));
  CHECK_THROWS_WITH(open(a.options(), {{.name = "B", .saver = &same}}),
                    ContainsSubstring("two savers write into the folder '" + a.saved() +
                                      "'; give each a folder of its own"));
  CHECK_THROWS_AS(open({}, {{.name = "B", .saver = &other}, {.name = "C", .saver = &twin}}),
                  c10::ValueError);
}

TEST_CASE("an optimizer that cannot be saved is refused before the run",
          "[train][run_checkpoints]") {
  struct Mine final : torch::optim::Optimizer {
    explicit Mine(const std::vector<at::Tensor>& parameters)
        : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                    std::make_unique<torch::optim::SGDOptions>(0.1)) {}
    at::Tensor step(LossClosure) override { return {}; }
  };
  Fixture a;
  a.state.optimizers = {std::make_shared<Mine>(a.state.model->parameters())};
  TrainerOptions options = a.options();
  CHECK_THROWS_WITH(RunCheckpoints(a.state, a.run).open(options, {}),
                    ContainsSubstring("Mine cannot be saved; derive it from tutti::Stateful"));
  options.save_weights_only = true;
  CHECK_NOTHROW(RunCheckpoints(a.state, a.run).open(options, {}));
}

TEST_CASE("mirrors are told of what was written, and a run waits for them and for their errors",
          "[train][run_checkpoints]") {
  Fixture a;
  Mirror mirror;
  RunCheckpoints checkpoints(a.state, a.run);
  checkpoints.open(a.options(), {{.name = "None"}, {.name = "B", .mirror = &mirror}});
  REQUIRE(checkpoints.due(BatchCheckpoint{}, false));
  checkpoints.save_next();
  mirror.waits = 2;
  checkpoints.finish();
  CHECK(mirror.calls == Names{"written ba4", "wait", "wait", "wait"});
  CHECK_FALSE(checkpoints.failed());
  mirror.error = "the line is down";
  CHECK(checkpoints.failed());
  CHECK_THROWS_WITH(checkpoints.wait(), ContainsSubstring("the line is down"));
  CHECK_THROWS_WITH(checkpoints.finish(), ContainsSubstring("the line is down"));
  CHECK_THROWS_WITH(checkpoints.save((a.folder / "x").string(), true),
                    ContainsSubstring("the line is down"));
  CHECK_NOTHROW(checkpoints.abandon());
  CHECK(mirror.calls.size() == 4);
}

TEST_CASE("a checkpoint is written where a program asks for it", "[train][run_checkpoints]") {
  Fixture a;
  TrainerOptions options = a.options();
  const std::string path = (a.folder / "mine").string();
  RunCheckpoints checkpoints(a.state, a.run);
  checkpoints.open(options, {});
  checkpoints.save(path, true);
  const auto weights = checkpoint::read_snapshot(path);
  CHECK(weights.meta.get<bool>("weights_only"));
  CHECK(weights.state.empty());
  CHECK(weights.model.tensor("weight").equal(a.state.model->named_parameters()["weight"]));
  CHECK_THROWS_WITH(checkpoints.save(path, false), ContainsSubstring("set overwrite to replace"));
  options.save_overwrite = true;
  RunCheckpoints replacing(a.state, a.run);
  replacing.open(options, {});
  replacing.save(path, false);
  CHECK(checkpoint::read_snapshot(path).state.contains("rng/0"));
}

TEST_CASE("a folder with checkpoints from later is refused unless the run goes on from it",
          "[train][run_checkpoints]") {
  Fixture a;
  a.write(a.saved() + "/ba4");
  checkpoint::point_latest(a.saved() + "/latest", "ba4");
  a.at_batch(0);
  TrainerOptions options = a.options();
  const auto check = [&] {
    RunCheckpoints checkpoints(a.state, a.run);
    checkpoints.open(options, {});
    checkpoints.load(options);
    checkpoints.check_folders();
    return checkpoints.continues();
  };
  CHECK_THROWS_WITH(check(), ContainsSubstring("ba4"));
  options.save_overwrite = true;
  CHECK_FALSE(check());
  options.save_overwrite = false;
  options.load_path = a.saved() + "/latest";
  const Warnings warnings;  // a run without optimizers
  CHECK(check());
  CHECK(a.state.timestamp.batch == 4);
}

TEST_CASE("a folder with a later checkpoint of another run is refused where a run goes on, too",
          "[train][run_checkpoints]") {
  Fixture a;
  TrainerOptions options = a.options();
  {
    RunCheckpoints writer(a.state, a.run);
    writer.open(options, {});
    for (const std::int64_t batch : {4, 6}) {
      a.at_batch(batch);
      REQUIRE(writer.due(BatchCheckpoint{}, false));
      writer.save_next();
    }
  }
  checkpoint::point_latest(a.saved() + "/latest", "ba4");  // as if killed between the two
  options.load_path = a.saved() + "/latest";
  const auto check = [&] {
    const Warnings warnings;  // a run without optimizers
    RunCheckpoints checkpoints(a.state, a.run);
    checkpoints.open(options, {});
    checkpoints.load(options);
    checkpoints.check_folders();
    CHECK(fs::path(checkpoints.last()).filename() == "ba4");
  };
  check();
  a.write(a.saved() + "/ba8");
  CHECK_THROWS_WITH(check(), ContainsSubstring("ba8' is from batch 8, later than"));
}

TEST_CASE("a run locks the folders of its savers, which its end gives back",
          "[train][run_checkpoints]") {
  Fixture a;
  const auto is_free = [&](const std::string& name) {
    const fs::path folder = a.folder / name;
    return !fs::exists(folder) || sorted_names(folder).empty() ||
           sorted_names(folder).front() != checkpoint::FolderLock::filename;
  };
  for (const OnSaveError on_error : {OnSaveError::stop, OnSaveError::warn}) {
    const bool stop = on_error == OnSaveError::stop;
    const std::string name = stop ? "stop" : "warn";
    TrainerOptions options = a.options();
    options.save_folder = (a.folder / name).string();
    options.save_on_error = on_error;
    checkpoint::Saver second(every(a.folder / "second", "100ba"), a.state);
    fs::create_directories(a.folder / "second");
    RunCheckpoints checkpoints(a.state, a.run);
    checkpoints.open(options, {{.name = "B", .saver = &second}});
    CHECK_FALSE(is_free("second"));
    CHECK_THROWS_WITH(RunCheckpoints(a.state, a.run).open({}, {{.name = "B", .saver = &second}}),
                      ContainsSubstring("another trainer of this process"));
    CHECK(is_free(name));  // it is not there
    checkpoints.check_folders();
    CHECK(is_free(name) == !stop);
    REQUIRE(checkpoints.due(BatchCheckpoint{}, false));
    checkpoints.save_next();
    CHECK_FALSE(is_free(name));
    checkpoints.finish();
    CHECK((is_free(name) && is_free("second")));
    checkpoints.restart();
    checkpoints.check_folders();
    CHECK_FALSE(is_free(name));
    checkpoints.abandon();
    CHECK((is_free(name) && is_free("second")));
    checkpoints.check_folders();
    checkpoints.release();
    CHECK((is_free(name) && is_free("second")));
  }
}

TEST_CASE("a folder that another trainer has come to is not saved into",
          "[train][run_checkpoints]") {
  Fixture a;
  TrainerOptions options = a.options();
  options.save_on_error = OnSaveError::warn;
  const Warnings warnings;
  RunCheckpoints checkpoints(a.state, a.run);
  checkpoints.open(options, {});
  checkpoints.check_folders();
  checkpoint::make_folder(a.saved());
  const checkpoint::FolderLock other(a.saved());
  REQUIRE(checkpoints.due(BatchCheckpoint{}, false));
  checkpoints.save_next();
  CHECK(sorted_names(a.saved()) == Names{checkpoint::FolderLock::filename});
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("a checkpoint could not be written") &&
                                    ContainsSubstring("another trainer of this process"));
}

TEST_CASE("a folder is made before training where a run must save", "[train][run_checkpoints]") {
  Fixture a;
  TrainerOptions options = a.options();
  const auto check = [&] {
    RunCheckpoints checkpoints(a.state, a.run);
    checkpoints.open(options, {});
    checkpoints.check_folders();
  };
  options.save_on_error = OnSaveError::warn;
  check();
  CHECK_FALSE(fs::exists(a.saved()));
  options.save_on_error = OnSaveError::stop;
  check();
  CHECK(fs::is_directory(a.saved()));
  fs::remove(a.saved());
  write_bytes(a.saved(), "no folder");
  CHECK_THROWS_WITH(check(), ContainsSubstring("a file has that name; choose another"));
}

TEST_CASE("without a path nothing is loaded, and mirrors are asked by autoresume alone",
          "[train][run_checkpoints]") {
  Fixture a;
  Mirror mirror;
  RunCheckpoints checkpoints(a.state, a.run);
  TrainerOptions options = a.options();
  checkpoints.open(options, {{.name = "B", .mirror = &mirror}});
  CHECK(checkpoints.load(options).path.empty());
  CHECK(mirror.calls.empty());
  options.autoresume = true;
  CHECK(checkpoints.load(options).path.empty());
  CHECK(mirror.calls == Names{"fetch latest"});
  CHECK_FALSE(checkpoints.continues());
}

TEST_CASE("autoresume takes the first mirror's checkpoint where the folder has none",
          "[train][run_checkpoints]") {
  Fixture a;
  Mirror first;
  Mirror second;
  first.kept = (a.folder / "elsewhere").string();
  a.write(first.kept);
  const at::Tensor weight = a.state.model->named_parameters()["weight"].detach();
  const at::Tensor want = weight.clone();
  weight.zero_();
  a.at_batch(0);
  TrainerOptions options = a.options();
  options.autoresume = true;
  RunCheckpoints checkpoints(a.state, a.run);
  checkpoints.open(options, {{.name = "B", .mirror = &first}, {.name = "C", .mirror = &second}});
  const Warnings warnings;  // a run without optimizers
  const RunLoadReport report = checkpoints.load(options);
  CHECK(fs::path(report.path).parent_path() == a.saved());
  CHECK(checkpoints.continues());
  CHECK(a.state.timestamp.batch == 4);
  CHECK(weight.equal(want));
  CHECK(first.calls == Names{"fetch latest"});
  CHECK(second.calls.empty());
}

TEST_CASE("an address is loaded from the mirror that has it and reported as it was given",
          "[train][run_checkpoints]") {
  Fixture a;
  Mirror mirror;
  mirror.kept = (a.folder / "elsewhere").string();
  a.write(mirror.kept);
  a.at_batch(0);
  TrainerOptions options = a.options();
  RunCheckpoints checkpoints(a.state, a.run);
  checkpoints.open(options, {{.name = "B", .mirror = &mirror}});
  options.load_path = "s3://b";
  CHECK_THROWS_WITH(checkpoints.load(options), ContainsSubstring("load_path is 's3://b', but no"));
  options.load_path = "s3://a";
  const Warnings warnings;
  CHECK(checkpoints.load(options).path == "s3://a");
  REQUIRE(warnings.texts.size() == 1);  // by the address, not by where it was for a moment
  CHECK(warnings.texts[0] ==
        "loaded 's3://a': 2 of 2 weights\n  restored: timestamp, rank_zero_seed, schedulers, "
        "rng\n  starting afresh: optimizers");
  CHECK_FALSE(checkpoints.continues());
  CHECK(a.state.timestamp.batch == 4);
  CHECK(sorted_names(a.folder.path()).empty());  // neither the copy nor a save folder
}

TEST_CASE("a damaged checkpoint from an address is refused by that address",
          "[train][run_checkpoints]") {
  Fixture a;
  Mirror mirror;
  mirror.kept = (a.folder / "elsewhere").string();
  a.write(mirror.kept);
  const std::string weights = mirror.kept + "/model.safetensors";
  std::string bytes = read_bytes(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(weights, bytes);
  TrainerOptions options = a.options();
  RunCheckpoints checkpoints(a.state, a.run);
  checkpoints.open(options, {{.name = "B", .mirror = &mirror}});
  options.load_path = "s3://a";
  CHECK_THROWS_WITH(checkpoints.load(options),
                    ContainsSubstring("checkpoint: 's3://a/model.safetensors' has the checksum"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
