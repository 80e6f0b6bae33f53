#include <tutti/loggers/in_memory.hpp>

#include <tutti/core/recipe.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::InMemoryLogger;

static_assert(tutti::Recipe<InMemoryLogger>::valid);
static_assert(tutti::role_of<InMemoryLogger> == tutti::Role::logger);

TEST_CASE("every value is kept with its time", "[loggers][law]") {
  InMemoryLogger logger;
  FakeRun run{logger, "2ep"};
  run.fire(tutti::FitStart{});
  run.epoch();
  run.epoch();
  const auto& loss = logger.series("loss/train/total");
  CHECK(loss.values == std::vector<double>{1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6});
  REQUIRE(loss.timestamps.size() == 6);
  CHECK(loss.timestamps[4].batch == 4);
  CHECK(loss.timestamps[4].epoch == 1);
  CHECK(loss.timestamps[4].sample == 64);
  CHECK(logger.latest("loss/train/total") == 1.0 / 6);
}

TEST_CASE("hyperparameters and tables are kept by name", "[loggers][law]") {
  InMemoryLogger logger;
  FakeRun run{logger, "1ep"};
  run.state.logger.log_hyperparameters({{"lr", 0.2}});
  CHECK(*logger.hyperparameters.at("lr").get_if<double>() == 0.2);
  CHECK(*logger.hyperparameters.at("run_name").get_if<std::string>() == "brisk-otter");
  const std::vector<std::string> columns{"a"};
  const std::vector<std::vector<std::string>> rows{{"1"}, {"2"}};
  run.state.logger.log_table({.name = "t", .columns = columns, .rows = rows}, 0);
  CHECK(logger.tables.at("t") == R"({"columns": ["a"], "data": [["1"], ["2"]]})");
}

TEST_CASE("behind a run a value keeps its batch, and the rest of the time at which that ended",
          "[loggers][law]") {
  InMemoryLogger logger;
  {
    FakeRun run{logger, "1ep"};
    run.fire(tutti::FitStart{});
    run.epoch();
    run.fire(tutti::FitEnd{});
  }
  const tutti::LoggedMetric late{"late", 1.0};
  logger.log_metrics({&late, 1}, 7);
  CHECK(logger.series("late").timestamps.at(0).batch == 7);
  CHECK(logger.series("late").timestamps.at(0).epoch == 1);
}

TEST_CASE("a metric that was never logged is refused with those that were", "[loggers]") {
  InMemoryLogger logger;
  CHECK_THROWS_WITH(logger.latest("loss"), ContainsSubstring("there are: (none)"));
  FakeRun run{logger, "1ep"};
  run.epoch();
  CHECK_THROWS_WITH(logger.latest("loss"),
                    ContainsSubstring("no metric called \"loss\" was logged; there are: "
                                      "loss/train/total, time/batch"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
