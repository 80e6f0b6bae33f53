#include <tutti/loggers/console.hpp>

#include <tutti/core/recipe.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::ConsoleLogger;

static_assert(tutti::Recipe<ConsoleLogger>::valid);
static_assert(tutti::role_of<ConsoleLogger> == tutti::Role::logger);

namespace {

// Tells nothing of the run's beginning and end.
ConsoleLogger plain(std::FILE* stream, tutti::Time log_interval = "1ba") {
  return {.log_interval = log_interval, .stream = stream, .summary = false};
}

}  // namespace

TEST_CASE("the console prints every batch and evaluation", "[loggers][trace]") {
  const Capture out;
  ConsoleLogger logger = plain(out.file);
  FakeRun run{logger, "1ep"};
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  run.fire(tutti::FitEnd{});
  CHECK(out.text() ==
        "[epoch=1][batch=1/3]:\n"
        "\t Train loss/train/total: 1\n\t Train time/batch: 0\n"
        "[epoch=1][batch=2/3]:\n"
        "\t Train loss/train/total: 0.5000\n\t Train time/batch: 1\n"
        "[epoch=1][batch=3/3]:\n"
        "\t Train loss/train/total: 0.3333\n\t Train time/batch: 2\n"
        "[Eval batch=1/2] Eval on test data\n"
        "[Eval batch=2/2] Eval on test data:\n"
        "\t Eval metrics/test/MulticlassAccuracy: 0.9844\n");
}

TEST_CASE("an interval in epochs prints the first and every n-th, and the end of the run",
          "[loggers][trace]") {
  const Capture out;
  ConsoleLogger logger = plain(out.file, "2ep");
  FakeRun run{logger, "3ep"};
  run.epoch();
  run.epoch();
  run.epoch();
  run.fire(tutti::FitEnd{});
  const std::string text = out.text();
  CHECK_THAT(text, ContainsSubstring("[epoch=1][batch=3/3]:\n\t Train loss/train/total: 0.3333"));
  CHECK_THAT(text, ContainsSubstring("[epoch=2][batch=3/3]:\n\t Train loss/train/total: 0.1667"));
  CHECK_THAT(text, ContainsSubstring("[epoch=3][batch=3/3]:\n\t Train loss/train/total: 0.1111"));
}

TEST_CASE("an interval in batches prints the first, every n-th and the last", "[loggers][trace]") {
  const Capture out;
  ConsoleLogger logger = plain(out.file, "3ba");
  FakeRun run{logger, "80sp"};
  for (int i = 0; i < 5; ++i) {
    run.batch();
  }
  run.fire(tutti::FitEnd{});
  std::string heads;
  const std::string text = out.text();
  for (std::size_t at = text.find('['); at != std::string::npos; at = text.find('[', at + 1)) {
    heads += text.substr(at, text.find('\n', at) - at);
  }
  CHECK(heads == "[sample=16/80]:[sample=48/80]:[sample=80/80]:");
}

TEST_CASE("a long evaluation prints ten signs of life and its end", "[loggers][trace]") {
  const Capture out;
  ConsoleLogger logger = plain(out.file);
  FakeRun run{logger, "1ep"};
  run.evaluate("test", 95);
  const std::string text = out.text();
  std::string batches;
  for (std::size_t at = text.find("[Eval"); at != std::string::npos;
       at = text.find("[Eval", at + 1)) {
    const std::size_t from = text.find('=', at) + 1;
    batches += text.substr(from, text.find('/', from) - from) + " ";
  }
  CHECK(batches == "1 11 20 30 39 49 58 68 77 87 95 ");  // every 9.5
  CHECK_THAT(text, ContainsSubstring("[Eval batch=1/95] Eval on test data\n"));
  CHECK_THAT(text, ContainsSubstring("[Eval batch=95/95] Eval on test data:\n\t Eval metrics"));
}

TEST_CASE("an evaluation of unknown length prints every hundredth batch", "[loggers][trace]") {
  const Capture out;
  ConsoleLogger logger = plain(out.file);
  FakeRun run{logger, "1ep"};
  run.state.dataloader_label = "test";
  run.state.dataloader_len = -1;
  run.fire(tutti::EvalStart{});
  for (int i = 0; i < 105; ++i) {
    run.state.eval_timestamp = run.state.eval_timestamp.to_next_batch(16);
    run.fire(tutti::EvalBatchEnd{});
  }
  run.fire(tutti::EvalEnd{});
  CHECK(out.text() ==
        "[Eval batch=1] Eval on test data\n[Eval batch=101] Eval on test data\n"
        "[Eval batch=105] Eval on test data:\n");
}

TEST_CASE("the console keeps quiet on other ranks", "[loggers][dist]") {
  const Capture out;
  ConsoleLogger logger{.stream = out.file};
  FakeRun run{logger, "1ep", 1};
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  run.fire(tutti::FitEnd{});
  run.state.logger.log_result({.state = run.state});
  CHECK(out.text().empty());
}

TEST_CASE("the console prints tables and numbers of every size", "[loggers][law]") {
  const Capture out;
  ConsoleLogger logger = plain(out.file);
  FakeRun run{logger, "1ep"};
  const std::vector<std::string> columns{"prompt", "text"};
  const std::vector<std::vector<std::string>> rows{{"a", "say \"b\""}};
  run.state.logger.log_table({.name = "generations", .columns = columns, .rows = rows}, 0);
  CHECK(out.text() ==
        "generations: {\"columns\": [\"prompt\", \"text\"], \"data\": [[\"a\", \"say "
        "\\\"b\\\"\"]]}\n");
  CHECK(tutti::detail::number_text(0.00012345) == "1.234e-04");
  CHECK(tutti::detail::number_text(-2.5) == "-2.5000");
  CHECK(tutti::detail::number_text(50000) == "50000");
  CHECK(tutti::detail::number_text(0) == "0");
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(tutti::detail::number_text(nan) == "nan");
  CHECK(tutti::detail::number_text(-nan) == "nan");  // as a processor makes it of 0 / 0
  CHECK(tutti::detail::hyperparameter_text(-nan) == "nan");
  CHECK(tutti::detail::number_text(0.001) == "0.0010");
  CHECK(tutti::detail::number_text(1e15) == "1.000e+15");
  CHECK(tutti::detail::number_text(std::numeric_limits<double>::infinity()) == "inf");
}

TEST_CASE("an interval that is not counted in batches or epochs is refused", "[loggers]") {
  CHECK_THROWS_WITH(ConsoleLogger{.log_interval = "10sp"}.validate(),
                    ContainsSubstring("log_interval is 10sp, expected at least 1ba or 1ep"));
  CHECK_THROWS_WITH(ConsoleLogger{.log_interval = "0ba"}.validate(),
                    ContainsSubstring("log_interval is 0ba"));
  CHECK_NOTHROW(ConsoleLogger{}.validate());
}

TEST_CASE("the console begins with the run's summary and ends with its result",
          "[loggers][trace]") {
  const Capture out;
  ConsoleLogger logger{.log_interval = "3ba", .stream = out.file};
  FakeRun run{logger, "1ep"};
  run.state.run_name = "brisk-otter";
  run.fire(tutti::FitStart{});
  run.epoch();
  run.evaluate();
  run.fire(tutti::FitEnd{});
  run.state.logger.log_result({.state = run.state, .latest_checkpoint = "run/ep1-ba3"});
  const std::string text = out.text();
  CHECK_THAT(text, Catch::Matchers::StartsWith("run        brisk-otter, 1ep (3 batches)\n"));
  CHECK_THAT(text, ContainsSubstring("\nfolder     none: no checkpoints are saved\n[epoch=1]"));
  CHECK_THAT(text, ContainsSubstring("MulticlassAccuracy: 0.9844\n"
                                     "metric                     best  at     last\n"
                                     "test/MulticlassAccuracy  0.9844  1ep  0.9844\n"
                                     "loss/train/total                      0.3333\n"));
  CHECK(text.ends_with("latest     run/ep1-ba3/model.safetensors\n"));
  CHECK_THAT(text, !ContainsSubstring("\033"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
