#include <tutti/train/report.hpp>

#include <filesystem>
#include <regex>
#include <string>
#include <utility>

#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/metrics/loss_metric.hpp>
#include <tutti/metrics/make_metrics.hpp>
#include <tutti/trainer.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

State state() {
  State state;
  state.run_name = "calm-motet";
  return state;
}

// Hears how a fit has ended.
struct Ending final {
  int* count = nullptr;
  std::string* text = nullptr;
  void log_result(const LoggedResult& result) const {
    ++*count;
    *text = std::string(result.complete ? "complete" : "ended") + " | " +
            std::string(result.latest_checkpoint) + " | " + std::string(result.best_checkpoint) +
            " | " + std::string(result.resume);
  }
};

struct Graded : tiny::Net {
  [[nodiscard]] Metrics metrics(bool train) const {
    return train ? Metrics()
                 : make_metrics(LossMetric(
                       [](const at::Tensor& outputs, const at::Tensor& targets) {
                         return (outputs - targets).pow(2).mean();
                       },
                       "Error"));
  }
};

}  // namespace

TEST_CASE("a run's folder is what the options say, and checkpoints go below it",
          "[train][report]") {
  TrainerOptions options;
  CHECK(train::resolve_run_folder(options, state()).empty());
  CHECK(options.save_folder.empty());
  options.run_folder = "runs/{run_name}";
  CHECK(train::resolve_run_folder(options, state()) == "runs/calm-motet");
  CHECK(options.save_folder == "runs/{run_name}/checkpoints");
  options.save_folder = "elsewhere";
  CHECK(train::resolve_run_folder(options, state()) == "runs/calm-motet");
  CHECK(options.save_folder == "elsewhere");
  options.run_folder = "runs/{batch}";
  CHECK_THAT(message([&] { train::resolve_run_folder(options, state()); }),
             ContainsSubstring("the run folder is \"runs/{batch}\", but {batch} changes"));
}

TEST_CASE("a model is counted with its buffers, and named without its namespace",
          "[train][report]") {
  struct Buffered : tiny::Net {
    Buffered() { register_buffer("seen", at::zeros({3}, at::kLong)); }
  };
  Buffered net;
  net.in->weight.requires_grad_(false);  // 32 of 58
  tutti::detail::Constants seen;
  train::add_model(seen, net);
  const tutti::detail::Constants expected{{"model/class", "Buffered"},
                                          {"model/parameters", std::int64_t{58}},
                                          {"model/trainable_parameters", std::int64_t{26}},
                                          {"model/bytes", std::int64_t{58 * 4 + 3 * 8}}};
  CHECK((seen == expected));
  CHECK(train::class_name(*torch::nn::Linear(1, 1)) == "Linear");
}

TEST_CASE("the program's options are kept in the run's folder, at the first rank",
          "[train][report]") {
  const TemporaryFolder folder;
  State here = state();
  here.run_folder = (folder / "runs/a").string();
  TrainerOptions options;
  train::keep_config(options, here);  // nobody has told any
  CHECK_FALSE(std::filesystem::exists(here.run_folder));
  options.command_line.config = "seed = 5\n";
  here.rank = 1;
  train::keep_config(options, here);
  CHECK_FALSE(std::filesystem::exists(here.run_folder));
  here.rank = 0;
  train::keep_config(options, here);
  CHECK(read_bytes(here.run_folder + "/config.toml") == "seed = 5\n");
  options.command_line.config = "seed = 6\n";
  train::keep_config(options, here);
  CHECK(read_bytes(here.run_folder + "/config.toml") == "seed = 6\n");
  CHECK(sorted_names(here.run_folder).size() == 1);
  here.run_folder.clear();
  train::keep_config(options, here);  // there is no folder to keep them in
}

TEST_CASE("a folder in which the options cannot be kept stops no run", "[train][report]") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  State here = state();
  TrainerOptions options;
  options.command_line.config = "seed = 5\n";
  Warnings warnings;
  here.run_folder = (folder / "file/a").string();
  train::keep_config(options, here);
  here.run_folder = (folder / "b").string();
  std::filesystem::create_directories(folder / "b/config.toml/c");  // what nothing can replace
  train::keep_config(options, here);
  REQUIRE(warnings.texts.size() == 2);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("cannot create the folder") &&
                                    ContainsSubstring("training goes on without config.toml"));
  CHECK_THAT(warnings.texts[1], ContainsSubstring("/b/config.toml': ") &&
                                    ContainsSubstring("training goes on without"));
  CHECK(sorted_names(folder / "b") == std::vector<std::string>{"config.toml"});
}

TEST_CASE("how to go on is told as the command that began, with what it lacks", "[train][report]") {
  const EnvironmentVariable unset("RUN_NAME", nullptr);
  TrainerOptions options{.max_duration = "30ep", .run_name = "calm-motet"};
  State here = state();
  const auto says = [&](bool complete, const std::string& latest = "run/ep3") {
    return train::resume_text(options, here, latest, complete);
  };
  CHECK(says(false) == "TrainerOptions{.load_path = \"run/ep3\"}");
  CHECK(says(true) == "TrainerOptions{.load_path = \"run/ep3\"} and a longer max_duration");
  options.command_line.command = "./digits --lr 0.2";
  CHECK(says(false) == "./digits --lr 0.2 --autoresume");
  CHECK(says(true) == "./digits --lr 0.2 --autoresume --max-duration 60ep");
  options.command_line.command = "./digits --max-duration 30ep --lr 0.2";
  CHECK(says(true) == "./digits --lr 0.2 --autoresume --max-duration 60ep");
  options.command_line.command = "./digits --lr 0.2 --max-duration 30ep";
  CHECK(says(true) == "./digits --lr 0.2 --autoresume --max-duration 60ep");
  options.command_line.command = "./digits --lr 0.2";
  CHECK(says(false, "").empty());  // there is no checkpoint
  options.autoresume = true;
  CHECK(says(false) == "./digits --lr 0.2");
  options.run_name = "";
  CHECK(says(false) == "./digits --lr 0.2 --run-name calm-motet");
  here.world_size = 2;
  CHECK(says(false) == "with the same launcher: ./digits --lr 0.2 --run-name calm-motet");
  here.world_size = 1;
  options.save_latest_filename = "";
  CHECK(says(false) == "./digits --lr 0.2 --load-path run/ep3 --run-name calm-motet");
  options.save_weights_only = true;
  CHECK(says(false).empty());
}

TEST_CASE("the end of a fit is told once it is over, with the best and the latest checkpoint",
          "[train][report]") {
  const TemporaryFolder folder;
  const std::string run = (folder / "run").string();
  int count = 0;
  std::string text;
  at::manual_seed(1);
  Trainer trainer{
      std::make_shared<Graded>(),
      {.train = tiny::batches(2),
       .eval = {{"test", tiny::batches(1)}},
       .max_duration = "3ep",
       .optimizer = SGD{.lr = 0.1},
       .device = "cpu",
       .run_name = "calm-motet",
       .run_folder = run,
       .command_line = {.command = "train", .config = "seed = 5\n"},
       .progress_bar = false},
      CheckpointSaver{
          .folder = "{run_folder}/best", .monitor = "Error", .dataloader_label = "test"},
      Ending{&count, &text}};
  CHECK(count == 0);
  trainer.fit();
  CHECK(count == 1);
  CHECK(text == "complete | " + run + "/checkpoints/ep3-ba6 | " + run +
                    "/best/ep3-ba6 | train --autoresume --max-duration 6ep");
  CHECK(sorted_names(run) == std::vector<std::string>{"best", "checkpoints", "config.toml"});
  trainer.fit("1ep");
  CHECK(count == 2);
  CHECK_THAT(text, ContainsSubstring("/checkpoints/ep4-ba8 | "));
  trainer.eval();
  trainer.close();
  CHECK(count == 2);
}

TEST_CASE(
    "a trainer's progress bar begins with eight lines and ends with a table, evaluations at "
    "the very end included",
    "[train][report][trace]") {
  const TemporaryFolder folder;
  const Capture out;
  at::manual_seed(1);
  Trainer trainer{std::make_shared<Graded>(),
                  {.train = tiny::batches(3),
                   .eval = {{"test", tiny::batches(1)}},
                   .max_duration = "2ep",
                   .eval_interval = "5ep",  // and so after the last epoch alone
                   .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
                   .device = "cpu",
                   .seed = 17,
                   .run_name = "calm-motet",
                   .run_folder = (folder / "run").string()},
                  ProgressBar{.stream = out.file}};
  trainer.fit();
  std::string text = out.text();
  const std::string run = (folder / "run").string();
  for (auto at = text.find(run); at != text.npos; at = text.find(run)) {
    text.replace(at, run.size(), "RUN");
  }
  for (const auto& [what, by] :
       {std::pair("[0-9]+:[0-9:]+", "T"), std::pair("[0-9.]+(?=ba/s| samples| batches a)", "R"),
        std::pair("[0-9]+\\.[0-9]+(?=[ ,\n])", "X"), std::pair(" +", " ")}) {
    text = std::regex_replace(text, std::regex(what), by);
  }
  CHECK(text ==
        "run calm-motet, 2ep (6 batches)\n"
        "model Graded, 58 parameters (X MB)\n"
        "recipe no policies\n"
        "optimizer SGD: lr=X, momentum=X\n"
        "schedule constant\n"
        "data train 3 batches, test 1 batch\n"
        "device cpu, fp32, seed 17\n"
        "folder RUN\n"
        "epoch 1/2 100% loss=X T left Rba/s\n"
        "epoch 2/2 100% loss=X test/Error=X Rba/s\n"
        "metric best at last\n"
        "test/Error X 2ep X\n"
        "loss/train/total X\n"
        "speed R batches a second, R samples\n"
        "time T, T of it training\n"
        "latest RUN/checkpoints/ep2-ba6/model.safetensors\n"
        "train on TrainerOptions{.load_path = \"RUN/checkpoints/ep2-ba6\"} and a longer "
        "max_duration\n");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
