#include <tutti/loggers/progress_bar.hpp>

#include <chrono>
#include <regex>
#include <thread>

#include <tutti/core/recipe.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"

using Catch::Matchers::ContainsSubstring;
using tutti::ProgressBar;
using tutti::detail::Bar;
using tutti::detail::bar_text;

static_assert(tutti::Recipe<ProgressBar>::valid);
static_assert(tutti::role_of<ProgressBar> == tutti::Role::logger);

namespace {

// The text without what the clock decides: times as T, rates as R.
std::string timeless(const std::string& text) {
  const std::string times = std::regex_replace(text, std::regex(R"(\[[0-9:?]+<[0-9:?]+)"), "[T<T");
  return std::regex_replace(times, std::regex(R"([0-9.?]+(s/)?(ba|sp)(/s)?([,\]]))"), "R$4");
}

}  // namespace

TEST_CASE("away from a terminal every bar is one plain line", "[loggers][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .log_config = false};
  FakeRun run{logger, "2ep"};
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  run.epoch();
  run.fire(tutti::FitEnd{});
  const std::string full(25, '#');
  CHECK(timeless(out.text()) ==
        "train          Epoch   0: 100%|" + full + "| 3/3 [T<T, R, loss/train/total=0.3333]\n" +
            "test           Epoch   0: 100%|" + full +
            "| 2/2 [T<T, R, MulticlassAccuracy=0.9844]\n" + "train          Epoch   1: 100%|" +
            full + "| 3/3 [T<T, R, loss/train/total=0.1667]\n");
}

TEST_CASE("a run that is not counted in epochs has one bar in its own unit", "[loggers][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .log_config = false};
  FakeRun run{logger, "96sp"};
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  run.epoch();
  run.fire(tutti::FitEnd{});
  const std::string full(25, '#');
  CHECK(timeless(out.text()) == "test           Sample    48: 100%|" + full +
                                    "| 2/2 [T<T, R, MulticlassAccuracy=0.9844]\n" + "train" +
                                    std::string(24, ' ') + "100%|" + full +
                                    "| 96/96 [T<T, R, loss/train/total=0.1667]\n");
}

TEST_CASE("a terminal's line is drawn over and left when the bar ends", "[loggers][trace]") {
  const Capture out;
  ProgressBar logger{
      .stream = out.file, .redraw_seconds = 0, .log_config = false, .terminal = true};
  FakeRun run{logger, "1ep"};
  run.fire(tutti::FitStart{});
  run.fire(tutti::EpochStart{});
  run.batch();
  run.evaluate();
  run.batch();
  run.fire(tutti::FitEnd{});
  const std::string text = out.text();
  CHECK_THAT(text, ContainsSubstring("\rtrain          Epoch   0:   0%|"));
  CHECK_THAT(text, ContainsSubstring("| 1/3 ["));
  CHECK_THAT(text, ContainsSubstring("\033[K\n\rtest           Batch   1:   0%|"));
  CHECK_THAT(text, ContainsSubstring("MulticlassAccuracy=0.9844]\033[K\n\rtrain"));
  CHECK(text.ends_with("loss/train/total=0.5000]\033[K\n"));
}

TEST_CASE("the time of an evaluation is not training's", "[loggers][law]") {
  using namespace std::chrono_literals;
  const Capture out;
  ProgressBar logger{.stream = out.file, .line_seconds = 0, .log_config = false};
  FakeRun run{logger, "1ep"};
  run.fire(tutti::EpochStart{});
  run.fire(tutti::EvalStart{});
  std::this_thread::sleep_for(30ms);
  run.fire(tutti::EvalEnd{});
  CHECK(logger.memory.other.bar.seconds >= 0.03);
  run.batch();
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - logger.memory.train.began;
  CHECK(logger.memory.train.bar.seconds > 0);
  CHECK(logger.memory.train.bar.seconds <= passed.count() - 0.03);
}

TEST_CASE("drawing is limited in time, not by batches", "[loggers][law]") {
  const Capture out;
  ProgressBar logger{
      .stream = out.file, .redraw_seconds = 3600, .log_config = false, .terminal = true};
  FakeRun run{logger, "1ep"};
  run.fire(tutti::EpochStart{});
  const std::size_t begun = out.text().size();
  CHECK(begun > 0);
  run.batch();
  run.batch();
  CHECK(out.text().size() == begun);
  run.fire(tutti::FitEnd{});
  CHECK(out.text().size() > begun);
}

TEST_CASE("a run resumed inside an epoch goes on where it was", "[loggers][resume]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .log_config = false};
  FakeRun run{logger, "1ep"};
  run.state.timestamp = run.state.timestamp.to_next_batch(16).to_next_batch(16);
  run.fire(tutti::FitStart{});
  run.batch();
  run.state.timestamp = run.state.timestamp.to_next_epoch();
  run.fire(tutti::EpochEnd{});
  CHECK_THAT(out.text(), ContainsSubstring("Epoch   0: 100%|"));
  CHECK_THAT(out.text(), ContainsSubstring("| 3/3 ["));
}

TEST_CASE("a prediction has a bar of its own, below the configuration", "[loggers][trace]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .redraw_seconds = 0};
  FakeRun run{logger, "1ep"};
  run.state.dataloader_label = "predict";
  run.state.dataloader_len = 2;
  run.fire(tutti::PredictStart{});
  for (int i = 0; i < 2; ++i) {
    run.state.predict_timestamp = run.state.predict_timestamp.to_next_batch(16);
    run.fire(tutti::PredictBatchEnd{});
  }
  run.fire(tutti::PredictEnd{});
  CHECK(timeless(out.text()) ==
        "******************************\nConfig:\nlr: 0.1\nrun_name: brisk-otter\n"
        "******************************\npredict        100%|" +
            std::string(25, '#') + "| 2/2 [T<T, R]\n");
}

TEST_CASE("a run stopped early keeps its bar's unit", "[loggers][law]") {
  const Capture out;
  ProgressBar logger{.stream = out.file, .log_config = false};
  FakeRun run{logger, "4ep"};
  run.fire(tutti::EpochStart{});
  run.batch();
  run.state.stop_training();
  run.batch();
  run.fire(tutti::FitEnd{});
  CHECK_THAT(out.text(), ContainsSubstring("| 2/3 ["));
}

TEST_CASE("an exception leaves no half line behind", "[loggers][law]") {
  const Capture out;
  ProgressBar logger{
      .stream = out.file, .redraw_seconds = 0, .log_config = false, .terminal = true};
  FakeRun run{logger, "1ep"};
  run.fire(tutti::EpochStart{});
  run.batch();
  CHECK_FALSE(out.text().ends_with("\n"));
  logger.close(run.state);
  CHECK(out.text().ends_with("\n"));
}

TEST_CASE("the config is printed once, and other ranks print nothing", "[loggers][law]") {
  const Capture out;
  ProgressBar logger{.stream = out.file};
  FakeRun run{logger, "1ep"};
  run.fire(tutti::FitStart{});
  run.fire(tutti::FitStart{});
  CHECK(out.text() ==
        "******************************\nConfig:\nlr: 0.1\nrun_name: brisk-otter\n"
        "******************************\n");

  const Capture none;
  ProgressBar silent{.stream = none.file, .redraw_seconds = 0, .terminal = true};
  FakeRun other{silent, "1ep", 1};
  other.fire(tutti::FitStart{});
  other.epoch();
  other.evaluate();
  other.fire(tutti::FitEnd{});
  silent.close(other.state);
  CHECK(none.text().empty());
}

TEST_CASE("a bar's line tells progress, time left, rate and values", "[loggers][law]") {
  Bar bar{.label = "train: ", .done = 30, .total = 120, .began_at = 10, .seconds = 10};
  bar.values = ", loss=0.5";
  CHECK(bar_text(bar, 120, false) ==
        "train:  25%|######                   | 30/120 [00:10<00:45, 2.00ba/s, loss=0.5]");
  CHECK(bar_text(bar, 120, true) ==
        "train:  25%|\u2588\u2588\u2588\u2588\u2588\u2588\u258e                  | 30/120 "
        "[00:10<00:45, 2.00ba/s, loss=0.5]");
  bar.seconds = 0.5;
  CHECK_THAT(bar_text(bar, 120, false), ContainsSubstring("[00:00<00:02, 40.00ba/s"));
  bar.seconds = 0;
  CHECK_THAT(bar_text(bar, 120, false), ContainsSubstring("[00:00<?, ?ba/s"));
  bar.seconds = 0.1;
  CHECK_THAT(bar_text(bar, 120, false), ContainsSubstring("[00:00<00:00, 200ba/s"));
  bar.seconds = 40;
  CHECK_THAT(bar_text(bar, 120, false), ContainsSubstring("[00:40<03:00, 2.00s/ba"));
  bar.done = bar.began_at;
  CHECK_THAT(bar_text(bar, 120, false), ContainsSubstring("[00:40<?, ?ba/s"));
  bar.done = 150;  // the last batch had more samples or tokens than were left
  CHECK(bar_text(bar, 120, false) ==
        "train: 100%|#########################| 150/120 [00:40<00:00, 3.50ba/s, loss=0.5]");
}

TEST_CASE("a bar's per cent are whole ones that are reached", "[loggers][law]") {
  for (int done = 0; done <= 100; ++done) {
    const std::string per_cent = std::to_string(done) + "%|";
    CHECK_THAT(bar_text({.label = " ", .done = done, .total = 100}, 120, false),
               ContainsSubstring(" " + per_cent));
  }
  CHECK_THAT(bar_text({.done = 999, .total = 1000}, 120, false), ContainsSubstring(" 99%|"));
  CHECK_THAT(bar_text({.done = 0, .total = 0}, 120, false), ContainsSubstring("100%|#"));
}

TEST_CASE("a narrow terminal shortens the bar before the values, and never wraps",
          "[loggers][law]") {
  Bar bar{.label = "train: ", .done = 30, .total = 120, .seconds = 10};
  bar.values = ", loss=0.5";
  const std::size_t whole = bar_text(bar, 120, false).size();
  CHECK(bar_text(bar, static_cast<int>(whole) - 7, false).ends_with("loss=0.5]"));
  for (int width = 0; width <= 120; ++width) {
    const std::string line = bar_text(bar, width, false);
    CHECK(line.size() <= std::max<std::size_t>(static_cast<std::size_t>(width), 17));
  }
}

TEST_CASE("an unknown length has no bar, and an hour is written as one", "[loggers][law]") {
  const Bar bar{.label = "train: ", .done = 7200, .total = -1, .seconds = 3700, .values = ", a=1"};
  CHECK(bar_text(bar, 120, false) == "train: 7200ba [1:01:40, 1.95ba/s, a=1]");
}
