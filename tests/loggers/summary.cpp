#include <tutti/loggers/summary.hpp>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::run_summary;
using tutti::State;
using Constants = std::vector<std::pair<std::string, tutti::HyperparameterValue>>;

namespace {

State state() {
  State state;
  state.run_name = "digits";
  state.run_folder = "digits-run";
  state.max_duration = "30ep";
  state.train_dataloader_len = 23;
  state.rank_zero_seed = 17;
  state.initial_lrs = {0.1};
  return state;
}

Constants constants() {
  return {{"MixUp/alpha", 1.0},
          {"policies", "MixUp, BlurPool, LabelSmoothing, EMA, ProgressBar"},
          {"run_name", "digits"},
          {"model/class", "CifarResNet"},
          {"model/parameters", std::int64_t{77850}},
          {"model/trainable_parameters", std::int64_t{77850}},
          {"model/bytes", std::int64_t{313000}},
          {"optimizer", "DecoupledSGDW"},
          {"optimizer/lr", 0.1},
          {"optimizer/momentum", 0.9},
          {"optimizer/dampening", 0.0},
          {"optimizer/weight_decay", 5e-4},
          {"optimizer/nesterov", false},
          {"schedule", "CosineAnnealingWithWarmup"},
          {"schedule/t_warmup", "2ep"},
          {"train_loader", "TensorLoader"},
          {"train_loader/batch_size", std::int64_t{64}},
          {"eval_loader/test", "TensorLoader"},
          {"eval_loader/test/batch_size", std::int64_t{64}},
          {"eval_loader/test/batches", std::int64_t{6}},
          {"run_folder", "digits-run"},
          {"save_folder", "digits-run/checkpoints"}};
}

// The line that begins with that word.
std::string line(const State& state, const Constants& constants, const std::string& key) {
  std::istringstream lines(run_summary(state, constants));
  for (std::string one; std::getline(lines, one);) {
    if (one.starts_with(key + " ")) {
      return one.substr(11);
    }
  }
  return "no such line";
}

// The same with another value of a constant.
Constants with(Constants values, const std::string& name, tutti::HyperparameterValue value) {
  for (auto& [known, old] : values) {
    if (known == name) {
      old = value;
      return values;
    }
  }
  values.emplace_back(name, std::move(value));
  return values;
}

const std::string eight_lines =
    "run        digits, 30ep (690 batches)\n"
    "model      CifarResNet, 77,850 parameters (0.3 MB)\n"
    "recipe     MixUp, BlurPool, LabelSmoothing, EMA\n"
    "optimizer  DecoupledSGDW: lr=0.1, momentum=0.9, weight_decay=0.0005\n"
    "schedule   CosineAnnealingWithWarmup: t_warmup=2ep\n"
    "data       train 23 batches of 64, test 6 batches of 64\n"
    "device     cpu, fp32, seed 17\n"
    "folder     digits-run\n";

}  // namespace

TEST_CASE("a run is summarised in eight lines, at 80 and 120 columns and without a width",
          "[loggers][summary]") {
  CHECK(run_summary(state(), constants()) == eight_lines);
  CHECK(run_summary(state(), constants(), 80) == eight_lines);
  CHECK(run_summary(state(), constants(), 120) == eight_lines);
}

TEST_CASE("at 50 columns longer lines of a summary are folded", "[loggers][summary]") {
  CHECK(run_summary(state(), constants(), 50) ==
        "run        digits, 30ep (690 batches)\n"
        "model      CifarResNet, 77,850 parameters (0.3 MB)\n"
        "recipe     MixUp, BlurPool, LabelSmoothing, EMA\n"
        "optimizer  DecoupledSGDW: lr=0.1, momentum=0.9,\n"
        "           weight_decay=0.0005\n"
        "schedule   CosineAnnealingWithWarmup: t_warmup=2ep\n"
        "data       train 23 batches of 64, test 6 batches\n"
        "           of 64\n"
        "device     cpu, fp32, seed 17\n"
        "folder     digits-run\n");
}

TEST_CASE("a summary says where a run goes on and what it has loaded", "[loggers][summary]") {
  State resumed = state();
  resumed.timestamp.batch = 1230;
  const Constants loaded = with(constants(), "load_path", "run/latest");
  CHECK(line(resumed, loaded, "run") ==
        "digits, 30ep (690 batches), goes on after batch 1,230 from run/latest");
  CHECK(line(state(), loaded, "run") == "digits, 30ep (690 batches) from run/latest");
  State in_batches = state();
  in_batches.max_duration = "500ba";
  CHECK(line(in_batches, constants(), "run") == "digits, 500ba");
}

TEST_CASE("a summary says what of a model is trained", "[loggers][summary]") {
  CHECK(line(state(), with(constants(), "model/trainable_parameters", std::int64_t{650}),
             "model") == "CifarResNet, 77,850 parameters (0.3 MB), 650 of them trained");
  CHECK(line(state(), with(constants(), "model/bytes", std::int64_t{4200}), "model") ==
        "CifarResNet, 77,850 parameters (0.004 MB)");
}

TEST_CASE("what a summary is not told it does not make up", "[loggers][summary]") {
  State bare;
  bare.run_name = "calm-motet";
  const Constants nothing{{"run_name", "calm-motet"}, {"policies", "ConsoleLogger"}};
  CHECK(line(bare, nothing, "run") == "calm-motet");
  CHECK(line(bare, nothing, "recipe") == "no policies");
  CHECK(line(bare, nothing, "schedule") == "constant");
  CHECK(line(bare, nothing, "folder") == "none: no checkpoints are saved");
  CHECK(line(bare, with(nothing, "save_folder", "run"), "folder") == "run");
  bare.initial_lrs = {0.1};  // of a schedule without a name
  CHECK(line(bare, nothing, "schedule") == "a function");
}

TEST_CASE("a summary says how many processes train, and where checkpoints go if elsewhere",
          "[loggers][summary][dist]") {
  State four = state();
  four.world_size = 4;
  CHECK(line(four, constants(), "device") == "cpu, fp32, 4 processes, seed 17");
  CHECK(line(four, constants(), "data") ==
        "train 23 batches of 64 a process, test 6 batches of 64");
  CHECK(line(state(), with(constants(), "save_folder", "/scratch/a"), "folder") ==
        "digits-run, checkpoints in /scratch/a");
}

TEST_CASE("a name cannot write on the terminal what it likes", "[loggers][summary]") {
  State odd = state();
  odd.run_name = "a\033[2Jb";
  CHECK_THAT(run_summary(odd, constants()), !ContainsSubstring("\033"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
