#include <tutti/loggers/progress_bar.hpp>

#include <algorithm>
#include <chrono>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/recipe.hpp>

#include "loggers/run.hpp"
#include "loggers/screen.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using tutti::ProgressBar;
using Lines = std::vector<std::string>;

static_assert(tutti::Recipe<ProgressBar>::valid);
static_assert(tutti::role_of<ProgressBar> == tutti::Role::logger);

namespace {

// The text without what the clock decides: times as T, rates as R.
std::string timeless(const std::string& text) {
  const std::string times = std::regex_replace(text, std::regex(R"([0-9]+:[0-9:]+)"), "T");
  return std::regex_replace(times, std::regex(R"( [0-9.]+(s/)?(ba|sp)(/s)?)"), " R");
}

using Run = FakeRun<ProgressBar>;

// What the trainer tells at the end of fit().
void end(Run& run) {
  run.fire(tutti::FitEnd{});
  run.state.logger.log_result({.state = run.state,
                               .latest_checkpoint = "run/ep2-ba6",
                               .resume = "train --autoresume --max-duration 4ep"});
}

// Two epochs, each evaluated.
void train(Run& run) {
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  run.accuracy = 0.75;
  run.epoch();
  run.evaluate();
  end(run);
}

// A terminal as most are, whatever the one is that the tests run in.
struct Terminal {
  EnvironmentVariable columns{"COLUMNS", nullptr};
  EnvironmentVariable kind{"TERM", "xterm"};
  EnvironmentVariable locale{"LC_ALL", "C.UTF-8"};
  EnvironmentVariable colours{"NO_COLOR", nullptr};
};

// Says so where it is true; a container may have none.
bool no_terminals() {
  if (!PseudoTerminal::available()) {
    tutti_test::skip("this machine has no pseudo terminals");
    return true;
  }
  return false;
}

// A run on a terminal of so many columns, drawn after every batch.
std::string trained_on(int columns) {
  PseudoTerminal terminal(columns);
  ProgressBar logger{.stream = terminal.file, .redraw_seconds = 0};
  Run run{logger, "2ep"};
  run.state.run_name = "brisk-otter";
  run.state.logger.log_hyperparameters({{"model/class", "Net"}, {"optimizer", "SGD"}});
  train(run);
  logger.close(run.state);
  return terminal.text();
}

}  // namespace

TEST_CASE("away from a terminal every epoch is one plain line with its evaluation",
          "[loggers][progress_bar][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "2ep"};
  train(run);
  CHECK(timeless(out.text()) ==
        "epoch 1/2 100% loss=0.3333 test/MulticlassAccuracy=0.9844 T left R\n"
        "epoch 2/2 100% loss=0.1667 test/MulticlassAccuracy=0.7500 R\n");
}

TEST_CASE("a run that is not counted in epochs leaves a line at every evaluation and at its end",
          "[loggers][progress_bar][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "96sp"};
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  run.epoch();
  end(run);
  CHECK(timeless(out.text()) ==
        "sample 48/96  50% loss=0.3333 test/MulticlassAccuracy=0.9844 T left R\n"
        "sample 96/96 100% loss=0.1667 test/MulticlassAccuracy=0.9844 R\n");
}

TEST_CASE("a terminal's line is drawn over, and stays when its epoch and evaluation have ended",
          "[loggers][progress_bar][trace]") {
  const Terminal terminal;
  const Capture out;
  ProgressBar logger{
      .stream = out.file, .redraw_seconds = 0, .summary = false, .terminal = true, .width = 80};
  Run run{logger, "2ep"};
  train(run);
  const std::string text = out.text();
  CHECK_THAT(text, StartsWith("\r\033[1mepoch 1/2\033[0m"));
  CHECK_THAT(text, ContainsSubstring("\r\033[1mtest\033[0m   0%"));  // while it runs
  const Lines lines = seen(text, 79);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(timeless(lines[0]),
             StartsWith("epoch 1/2 100% loss=0.3333 test/MulticlassAccuracy=0.9844 T left"));
  CHECK_THAT(timeless(lines[1]),
             StartsWith("epoch 2/2 100% loss=0.1667 test/MulticlassAccuracy=0.7500"));
}

TEST_CASE("an evaluation within an epoch leaves the line so far",
          "[loggers][progress_bar][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "1ep"};
  run.fire(tutti::FitStart{});
  run.fire(tutti::EpochStart{});
  run.batch();
  run.evaluate();
  run.accuracy = 0.5;
  run.batch();
  run.evaluate("other");
  end(run);
  CHECK(timeless(out.text()) ==
        "epoch 1/1  33% loss=1 test/MulticlassAccuracy=0.9844 T left R\n"
        "epoch 1/1  66% loss=0.5000 test/MulticlassAccuracy=0.9844 other/MulticlassAccuracy=0.5000 "
        "T left R\n");
}

TEST_CASE("an evaluation and a prediction outside of fit have lines of their own",
          "[loggers][progress_bar][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "1ep"};
  run.evaluate();
  run.state.dataloader_label = "predict";
  run.state.dataloader_len = 2;
  run.fire(tutti::PredictStart{});
  for (int i = 0; i < 2; ++i) {
    run.state.predict_timestamp = run.state.predict_timestamp.to_next_batch(16);
    run.fire(tutti::PredictBatchEnd{});
  }
  run.fire(tutti::PredictEnd{});
  CHECK(timeless(out.text()) == "test 100% MulticlassAccuracy=0.9844 R\npredict 100% R\n");
}

TEST_CASE("the time of an evaluation is not training's", "[loggers][progress_bar][law]") {
  using namespace std::chrono_literals;
  const Capture out;
  ProgressBar logger{.stream = out.file, .line_seconds = 0, .summary = false};
  Run run{logger, "1ep"};
  run.fire(tutti::EpochStart{});
  run.fire(tutti::EvalStart{});
  std::this_thread::sleep_for(30ms);
  run.fire(tutti::EvalEnd{});
  run.batch();
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - logger.run.train.began;
  CHECK(logger.run.train.shown.seconds > 0);
  CHECK(logger.run.train.shown.seconds <= passed.count() - 0.03);
}

TEST_CASE("the time left is that of the whole run", "[loggers][progress_bar][law]") {
  using namespace std::chrono_literals;
  const Capture out;
  ProgressBar logger{.stream = out.file, .line_seconds = 0, .summary = false};
  Run run{logger, "100ep"};  // 300 batches
  run.fire(tutti::FitStart{});
  run.fire(tutti::EpochStart{});
  CHECK(logger.run.train.shown.left < 0);  // not known yet
  std::this_thread::sleep_for(20ms);
  run.batch();
  CHECK(logger.run.train.shown.left >= 0.02 * 299 * 0.999);
}

TEST_CASE("drawing is limited in time, not by batches", "[loggers][progress_bar][law]") {
  const Capture out;
  ProgressBar logger{
      .stream = out.file, .redraw_seconds = 3600, .summary = false, .terminal = true};
  Run run{logger, "1ep"};
  run.fire(tutti::EpochStart{});
  const std::size_t begun = out.text().size();
  CHECK(begun > 0);
  run.batch();
  run.batch();
  CHECK(out.text().size() == begun);
  run.fire(tutti::FitEnd{});
  CHECK(out.text().size() > begun);
}

TEST_CASE("a run resumed inside an epoch goes on where it was", "[loggers][progress_bar][resume]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "1ep"};
  run.state.timestamp = run.state.timestamp.to_next_batch(16).to_next_batch(16);
  run.fire(tutti::FitStart{});
  run.batch();
  run.state.timestamp = run.state.timestamp.to_next_epoch();
  run.fire(tutti::EpochEnd{});
  end(run);
  CHECK(timeless(out.text()) == "epoch 1/1 100% loss=0.3333 R\n");
}

TEST_CASE("a run stopped early keeps its line's unit", "[loggers][progress_bar][law]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "4ep"};
  run.fire(tutti::FitStart{});
  run.fire(tutti::EpochStart{});
  run.batch();
  run.state.stop_training();
  run.batch();
  end(run);
  CHECK(timeless(out.text()) == "epoch 1/4  66% loss=0.5000 R\n");
}

TEST_CASE("an exception leaves no half line behind", "[loggers][progress_bar][law]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .redraw_seconds = 0, .summary = false, .terminal = true};
  Run run{logger, "1ep"};
  run.fire(tutti::EpochStart{});
  run.batch();
  CHECK_FALSE(out.text().ends_with("\n"));
  logger.close(run.state);
  CHECK(out.text().ends_with("\n"));
}

TEST_CASE("an exception after an epoch loses nothing of its line", "[loggers][progress_bar][law]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "2ep"};
  run.fire(tutti::FitStart{});
  run.epoch();
  logger.close(run.state);
  CHECK_THAT(out.text(), StartsWith("epoch 1/2 100% loss=0.3333"));
}

TEST_CASE("a second fit has lines of its own", "[loggers][progress_bar][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .summary = false};
  Run run{logger, "48sp"};
  run.fire(tutti::FitStart{});
  run.epoch();
  end(run);
  run.state.max_duration = "96sp";
  run.fire(tutti::FitStart{});
  run.epoch();
  end(run);
  CHECK(timeless(out.text()) ==
        "sample 48/48 100% loss=0.3333 R\nsample 96/96 100% loss=0.1667 R\n");
}

TEST_CASE("a run begins with its summary, once, and ends with its best and last metrics",
          "[loggers][progress_bar][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file};
  Run run{logger, "2ep"};
  run.state.run_name = "brisk-otter";
  train(run);
  CHECK(timeless(out.text()) ==
        "run        brisk-otter, 2ep (6 batches)\n"
        "recipe     no policies\n"
        "schedule   constant\n"
        "data       train 3 batches\n"
        "device     cpu, fp32, seed 0\n"
        "folder     none: no checkpoints are saved\n"
        "epoch 1/2 100% loss=0.3333 test/MulticlassAccuracy=0.9844 T left R\n"
        "epoch 2/2 100% loss=0.1667 test/MulticlassAccuracy=0.7500 R\n"
        "metric                     best  at     last\n"
        "test/MulticlassAccuracy  0.9844  1ep  0.7500\n"
        "loss/train/total                      0.1667\n"
        "time       T, T of it training\n"
        "latest     run/ep2-ba6/model.safetensors\n"
        "train on   train --autoresume --max-duration 4ep\n");
  run.state.max_duration = "3ep";
  run.fire(tutti::FitStart{});
  CHECK_THAT(out.text(), !ContainsSubstring("brisk-otter, 3ep"));
}

TEST_CASE("speed is that of training alone, and a signal's end is told as one",
          "[loggers][progress_bar][trace]") {
  using namespace std::chrono_literals;
  const Capture out;
  ProgressBar logger{.stream = out.file};
  Run run{logger, "2ep"};
  run.state.timestamp.total_wct = 7s;  // before this fit
  run.state.timestamp.batch = 100;
  run.fire(tutti::FitStart{});
  run.state.timestamp.batch += 30;
  run.state.timestamp.sample += 480;
  run.state.timestamp.total_wct += 2s;
  run.state.logger.log_result({.state = run.state,
                               .complete = false,
                               .latest_checkpoint = "run/ba130",
                               .best_checkpoint = "best/ba100",
                               .resume = "train --autoresume"});
  CHECK_THAT(out.text(), ContainsSubstring("speed      15.0 batches a second, 240.0 samples\n"
                                           "time       00:00, 00:02 of it training\n"
                                           "best       best/ba100/model.safetensors\n"
                                           "latest     run/ba130/model.safetensors\n"
                                           "resume     train --autoresume\n"));
}

TEST_CASE("ranks other than the first print nothing", "[loggers][progress_bar][dist]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .redraw_seconds = 0, .terminal = true};
  Run run{logger, "2ep", 1};
  train(run);
  logger.close(run.state);
  CHECK(out.text().empty());
}

TEST_CASE(
    "a terminal of 80 or 120 columns shows a summary of eight lines, loss, accuracy and a "
    "bar",
    "[loggers][progress_bar][terminal]") {
  if (no_terminals()) {
    return;
  }
  const Terminal terminal;
  for (const int columns : {80, 120}) {
    INFO(columns << " columns");
    const Lines lines = seen(trained_on(columns), columns - 1);
    REQUIRE(lines.size() == 16);
    CHECK(lines[0] == "run        brisk-otter, 2ep (6 batches)");
    CHECK_THAT(lines[7], StartsWith("folder     "));
    for (const int i : {8, 9}) {
      CHECK_THAT(lines[static_cast<std::size_t>(i)], StartsWith("epoch "));
      CHECK_THAT(lines[static_cast<std::size_t>(i)],
                 ContainsSubstring(" loss=0.") && ContainsSubstring("/MulticlassAccuracy=0."));
      CHECK_THAT(lines[static_cast<std::size_t>(i)], ContainsSubstring("|\u2588\u2588\u2588"));
    }
    CHECK_THAT(lines[10], StartsWith("metric "));
    CHECK(lines[15] == "train on   train --autoresume --max-duration 4ep");
  }
}

TEST_CASE("a terminal of 50 columns shows loss and accuracy and no bar",
          "[loggers][progress_bar][terminal]") {
  if (no_terminals()) {
    return;
  }
  const Terminal terminal;
  const Lines lines = seen(trained_on(50), 50);
  REQUIRE(lines.size() == 16);
  for (const int i : {8, 9}) {
    CHECK_THAT(lines[static_cast<std::size_t>(i)],
               ContainsSubstring(" loss=0.") && ContainsSubstring("MulticlassAccuracy=0."));
    CHECK_THAT(lines[static_cast<std::size_t>(i)], !ContainsSubstring("|"));
  }
}

TEST_CASE("colours are for terminals whose user has not refused them",
          "[loggers][progress_bar][terminal]") {
  if (no_terminals()) {
    return;
  }
  const Terminal terminal;
  CHECK_THAT(trained_on(80), ContainsSubstring("\033[1m"));
  {
    const EnvironmentVariable empty("NO_COLOR", "");  // counts as not set
    CHECK_THAT(trained_on(80), ContainsSubstring("\033[1m"));
  }
  const EnvironmentVariable refused("NO_COLOR", "1");
  const std::string text = trained_on(80);
  CHECK(std::count(text.begin(), text.end(), '\033') > 0);
  for (std::size_t at = text.find('\033'); at != text.npos; at = text.find('\033', at + 1)) {
    CHECK(text.substr(at, 3) == "\033[K");  // what clears a line is no colour
  }
}

TEST_CASE("what is no terminal, or a dumb one, gets no control characters",
          "[loggers][progress_bar][terminal]") {
  if (no_terminals()) {
    return;
  }
  const Terminal terminal;
  const EnvironmentVariable dumb("TERM", "dumb");
  const Capture pipe;
  ProgressBar logger{.stream = pipe.file, .redraw_seconds = 0, .line_seconds = 0};
  Run run{logger, "2ep"};
  train(run);
  for (const std::string& text : {trained_on(80), pipe.text()}) {
    CHECK(text.size() > 500);
    CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || c >= ' '; }));
    CHECK_THAT(text, !ContainsSubstring("|"));
  }
}

TEST_CASE("the environment's COLUMNS come before what the terminal says",
          "[loggers][progress_bar][terminal]") {
  if (no_terminals()) {
    return;
  }
  const Terminal terminal;
  const EnvironmentVariable narrow("COLUMNS", "50");
  CHECK_NOTHROW(seen(trained_on(120), 50));
}

TEST_CASE("names that are not ASCII keep a line within its columns",
          "[loggers][progress_bar][terminal]") {
  const Terminal terminal;
  const Capture out;
  ProgressBar logger{
      .stream = out.file, .redraw_seconds = 0, .summary = false, .terminal = true, .width = 40};
  Run run{logger, "1ep"};
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate("検証\tデータ");
  end(run);
  CHECK_NOTHROW(seen(out.text(), 39));
  CHECK_THAT(out.text(), ContainsSubstring("検証?データ"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
