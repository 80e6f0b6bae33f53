#include <tutti/loggers/slack.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include <tutti/core/recipe.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::SlackLogger;

static_assert(tutti::Recipe<SlackLogger>::valid);
static_assert(tutti::role_of<SlackLogger> == tutti::Role::logger);

namespace {

struct Crash {
  void apply(tutti::BatchEnd, const tutti::State& state) const {
    if (state.timestamp.batch == at) {
      throw std::runtime_error("crash");
    }
  }
  std::int64_t at = -1;
};

void train(const SlackLogger& slack, std::int64_t crash = -1) {
  tutti::Trainer trainer{tiny::net(),
                         {.train = tiny::batches(4),
                          .max_duration = "2ep",
                          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
                          .device = "cpu",
                          .seed = 3,
                          .run_name = "calm \"etude\"",
                          .progress_bar = false},
                         slack,
                         Crash{crash}};
  trainer.fit();
}

// A program in the place of curl, which adds what it gets to a file.
std::string to_file(const std::filesystem::path& out, const std::string& what = "{file}") {
  return "sh -c 'cat " + what + " >> " + out.string() + "; echo >> " + out.string() + "'";
}

}  // namespace

TEST_CASE("a run tells how it begins, goes and ends", "[loggers]") {
  const TemporaryFolder folder;
  const auto out = folder / "messages";
  train({.webhook_url = "https://hooks.example/T0/B0/x",
         .include_keys = {"loss/*/total"},
         .command = to_file(out)});
  const std::string said = read_bytes(out);
  CHECK(said.starts_with(R"({"text": "calm \"etude\" begins at 0ba, for 2ep, on 1 process"})"));
  CHECK_THAT(said, ContainsSubstring(R"(calm \"etude\" at 1ep\nloss/train/total: )"));
  CHECK_THAT(said, ContainsSubstring(R"(calm \"etude\" at 2ep\nloss/train/total: )"));
  CHECK_THAT(said, ContainsSubstring(R"(is done at 8ba\nloss/train/total: )"));
  CHECK_THAT(said, !ContainsSubstring("time/"));
  CHECK_THAT(said, !ContainsSubstring("hooks.example"));
}

TEST_CASE("curl gets the address and the message by a file of its own", "[loggers]") {
  const TemporaryFolder folder;
  const auto out = folder / "configs";
  train({.webhook_url = "https://hooks.example/\"x",
         .log_interval = 0,
         .command = to_file(out, "{config}")});
  const std::string config = read_bytes(out);
  CHECK(
      config.starts_with("url = \"https://hooks.example/\\\"x\"\nheader = "
                         "\"Content-Type: application/json\"\ndata-binary = \"@/"));
  CHECK_THAT(config, !ContainsSubstring("calm"));
}

TEST_CASE("a run that fails says so", "[loggers]") {
  const TemporaryFolder folder;
  const auto out = folder / "messages";
  CHECK_THROWS_WITH(train({.webhook_url = "x", .log_interval = "3ba", .command = to_file(out)}, 5),
                    ContainsSubstring("crash"));
  CHECK_THAT(read_bytes(out), ContainsSubstring("at 3ba") && ContainsSubstring("failed at 5ba"));
}

TEST_CASE("a webhook that does not answer holds nobody up", "[loggers]") {
  const auto start = std::chrono::steady_clock::now();
  {
    Warnings warnings;
    train({.webhook_url = "x", .command = "sh -c 'sleep 30' {file}", .close_seconds = 0.2});
    CHECK_THAT(warnings.texts.back(), ContainsSubstring("messages have not reached the webhook"));
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("SlackLogger says what is missing", "[loggers]") {
  ::unsetenv("SLACK_WEBHOOK_URL");
  CHECK_THROWS_WITH(train({}), ContainsSubstring("set webhook_url, or SLACK_WEBHOOK_URL"));
  CHECK_THROWS_WITH(SlackLogger{.command = "curl x"}.validate(),
                    ContainsSubstring("expected one with {config} or {file}"));
  CHECK_THROWS_WITH(SlackLogger{.log_interval = "5sp"}.validate(),
                    ContainsSubstring("log_interval is 5sp, expected 0 or more in ep or ba"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
