#include <tutti/loggers/dashboard.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/rand.h>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/loggers/detail/run_record.hpp>
#include <tutti/trainer.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Dashboard;

static_assert(tutti::Recipe<Dashboard>::valid);
static_assert(tutti::role_of<Dashboard> == tutti::Role::logger);

namespace {

Dashboard quiet(const TemporaryFolder& folder) {
  return {.filename = (folder / "dashboard.jsonl").string(),
          .report = (folder / "report.html").string(),
          .serve = false,
          .flush_seconds = 0};
}

// A program that takes the place of tutti-dashboard.
void write_program(const std::filesystem::path& path, const std::string& text) {
  write_bytes(path, "#!/bin/sh\n" + text);
  ::chmod(path.c_str(), 0755);
}

bool comes(const std::filesystem::path& path) {
  for (int i = 0; i < 500 && !std::filesystem::exists(path); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return std::filesystem::exists(path);
}

struct FailAtBatch {
  void apply(tutti::BatchEnd, const tutti::State& state) const {
    if (state.timestamp.batch == at) {
      throw std::runtime_error("the <disk> is \"on fire\"");
    }
  }
  std::int64_t at = 3;
};

}  // namespace

TEST_CASE("a dashboard's file tells all of a run, and the report shows it",
          "[loggers][dashboard]") {
  const TemporaryFolder folder;
  Dashboard dashboard = quiet(folder);
  dashboard.show_plan("init:\n  BlurPool </script>");
  FakeRun run{dashboard, "1ep"};
  run.fire(tutti::AfterLoad{});
  run.epoch();
  run.evaluate();
  run.state.logger.log_images({.name = "Images/Train", .images = at::rand({2, 3, 4, 4})}, 2);
  const std::vector<std::string> columns{"prompt", "text"};
  const std::vector<std::vector<std::string>> rows{{"Once", "<b>upon</b>"}};
  run.state.logger.log_table({.name = "generations", .columns = columns, .rows = rows}, 3);
  run.state.logger.log_result(
      {.state = run.state, .complete = true, .best_checkpoint = "checkpoints/ep1"});
  dashboard.close(run.state);

  std::string types;
  std::string text = read_bytes(folder / "dashboard.jsonl");
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    const auto line = tutti::detail::parse_json(text.substr(at, text.find('\n', at) - at));
    types += line["type"].string() + " ";
  }
  CHECK(types ==
        "start plan hyperparameters metrics metrics metrics metrics image table event end ");
  const tutti::detail::Json end =
      tutti::detail::parse_json(text.substr(text.find("{\"type\": \"end\"")));
  CHECK(end["status"].string() == "finished");
  CHECK(sorted_names(folder / "dashboard") == std::vector<std::string>{"0.png"});

  const std::string page = read_bytes(folder / "report.html");
  CHECK_THAT(page, ContainsSubstring("BlurPool \\u003c/script>") &&
                       ContainsSubstring("data:image/png;base64,iVBORw0KGgo") &&
                       ContainsSubstring("\\u003cb>upon\\u003c/b>") &&
                       ContainsSubstring("metrics/test/MulticlassAccuracy") &&
                       ContainsSubstring("the best checkpoint is checkpoints/ep1"));
  CHECK(page.find("http://") == std::string::npos);  // nothing to ask of anybody
  CHECK(page.find("https://") == std::string::npos);
}

TEST_CASE("the files of a resumed run go on", "[loggers][dashboard][resume]") {
  const TemporaryFolder folder;
  tutti::Archive saved;
  for (const int times : {0, 1}) {
    Dashboard dashboard = quiet(folder);
    FakeRun run{dashboard, "9ep"};
    if (times == 1) {
      run.state.timestamp = run.state.timestamp.to_next_batch(16);
      dashboard.load(saved);
    }
    run.fire(tutti::AfterLoad{});
    run.batch();
    run.state.log_metrics({{"behind", 3}});  // of step 1, where a checkpoint is written
    if (times == 0) {
      dashboard.save(saved);
    }
    run.state.logger.log_images({.name = "i", .images = at::rand({3, 4, 4})}, 1);
    dashboard.close(run.state);
  }
  CHECK(sorted_names(folder / "dashboard") == std::vector<std::string>{"0.png", "1.png"});
  tutti::detail::RunRecord record{folder.path()};
  record.poll();
  CHECK(record.facts().images.size() == 2);
  const auto& series = record.facts().series;
  CHECK(series.front().series.points() == 2);  // of the batches 0 and 1
  const auto behind = std::find_if(series.begin(), series.end(),
                                   [](const auto& one) { return one.name == "behind"; });
  REQUIRE(behind != series.end());
  CHECK(behind->series.points() == 2);  // at the steps 1 and 2

  Dashboard anew = quiet(folder);
  FakeRun run{anew, "1ep"};
  CHECK_THROWS_WITH(run.fire(tutti::AfterLoad{}), ContainsSubstring("is from an earlier run"));
}

TEST_CASE("of images the newest are kept", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  Dashboard dashboard = quiet(folder);
  FakeRun run{dashboard, "1ep"};
  run.fire(tutti::AfterLoad{});
  const at::Tensor image = at::rand({1, 2, 2});
  for (int i = 0; i < 70; ++i) {
    run.state.logger.log_images({.name = "i", .images = image}, i);
  }
  const auto names = sorted_names(folder / "dashboard");
  CHECK(names.size() == 64);
  CHECK(!std::filesystem::exists(folder / "dashboard/5.png"));
  const Warnings warnings;
  for (int i = 0; i < 2; ++i) {  // of no shape that a picture has: said once
    run.state.logger.log_images({.name = "i", .images = at::rand({2})}, 70);
  }
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("Dashboard: an image is left out"));
}

TEST_CASE("a run that fails says why, in a report too", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  {
    tutti::Trainer trainer{tiny::net(),
                           {.train = tiny::batches(4),
                            .max_duration = "1ep",
                            .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
                            .device = "cpu",
                            .seed = 3,
                            .run_name = "run <b>7</b>",
                            .progress_bar = false},
                           quiet(folder),
                           FailAtBatch{}};
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("on fire"));
  }
  tutti::detail::RunRecord record{folder.path()};
  record.poll();
  CHECK(record.status() == "failed");
  CHECK(record.facts().error == "the <disk> is \"on fire\"");
  CHECK_THAT(record.facts().plan, ContainsSubstring("FailAtBatch"));
  CHECK_THAT(read_bytes(folder / "report.html"),
             ContainsSubstring("the \\u003cdisk> is \\\"on fire\\\"") &&
                 ContainsSubstring("run \\u003cb>7\\u003c/b>"));
}

TEST_CASE("a full disk is warned of and training goes on", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "dashboard.jsonl");
  std::filesystem::create_symlink("/dev/full", folder / "report.html.part");
  const Warnings warnings;
  Dashboard dashboard = quiet(folder);
  FakeRun run{dashboard, "1ep"};
  run.fire(tutti::AfterLoad{});
  run.epoch();
  CHECK_NOTHROW(dashboard.close(run.state));
  std::string all;
  for (const std::string& text : warnings.texts) {
    all += text + "\n";
  }
  CHECK_THAT(all, ContainsSubstring("No space left on device; training goes on"));
  CHECK_THAT(all, ContainsSubstring("cannot write '" + (folder / "report.html").string()));
}

TEST_CASE("options that cannot be are refused", "[loggers][dashboard]") {
  CHECK_THROWS_WITH(Dashboard{.filename = "{run_folder}/metrics.jsonl"}.validate(),
                    ContainsSubstring("begins with \"dashboard\" and ends in \".jsonl\""));
  CHECK_THROWS_WITH(Dashboard{.port = 65536}.validate(), ContainsSubstring("expected 1 to 65535"));
  CHECK_THROWS_WITH(Dashboard{.host = ""}.validate(), ContainsSubstring("write \"127.0.0.1\""));
  CHECK_THROWS_WITH(Dashboard{.flush_seconds = -1}.validate(),
                    ContainsSubstring("Dashboard: flush_seconds"));
  CHECK_NOTHROW(Dashboard{}.validate());
  Dashboard all{.serve = false, .rank_zero_only = false};
  tutti::State state;
  state.world_size = 2;
  CHECK_THROWS_WITH(all.apply(tutti::Init{}, state), ContainsSubstring("put {rank} into it"));
}

TEST_CASE("the program that serves the page lives as long as the run", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  const auto program = folder / "viewer";
  write_program(program, "echo http://127.0.0.1:1/token/\necho \"$@\" > '" +
                             (folder / "asked").string() + "'\ncat\ntouch '" +
                             (folder / "gone").string() + "'\n");
  const EnvironmentVariable told("TUTTI_DASHBOARD", program.c_str());
  Dashboard dashboard = quiet(folder);
  dashboard.serve = true;
  dashboard.port = 7;
  const Capture screen;
  dashboard.stream = screen.file;
  FakeRun run{dashboard, "1ep"};
  run.fire(tutti::AfterLoad{});
  CHECK(dashboard.address() == "http://127.0.0.1:1/token/");
  CHECK(screen.text() == "dashboard  http://127.0.0.1:1/token/\n");
  REQUIRE(comes(folder / "asked"));
  CHECK(!std::filesystem::exists(folder / "gone"));
  dashboard.close(run.state);
  CHECK(comes(folder / "gone"));
  const std::string asked = read_bytes(folder / "asked");
  CHECK(asked == "--of-run " + folder.path().string() + " --host 127.0.0.1 --port 7 --report " +
                     (folder / "report.html").string() + "\n");
}

TEST_CASE("without a page the run goes on", "[loggers][dashboard]") {
  const TemporaryFolder folder;
  const auto program = folder / "viewer";
  const auto [said, expected] = GENERATE(
      table<std::string, std::string>({{"", "No such file or directory"},
                                       {"echo port 6070 is taken; exit 1\n", "port 6070 is taken"},
                                       {"exit 3\n", "it said nothing"}}));
  if (!said.empty()) {
    write_program(program, said);
  }
  const EnvironmentVariable told("TUTTI_DASHBOARD", program.c_str());
  const Warnings warnings;
  Dashboard dashboard = quiet(folder);
  dashboard.serve = true;
  FakeRun run{dashboard, "1ep"};
  run.fire(tutti::AfterLoad{});
  run.epoch();
  dashboard.close(run.state);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0], ContainsSubstring(expected) && ContainsSubstring("at the end"));
  CHECK(dashboard.address().empty());
  CHECK(std::filesystem::exists(folder / "report.html"));
}

// Not run by itself: dashboard_browser.py says where, and looks at the page meanwhile.
TEST_CASE("a run to look at", "[.][dashboard_run]") {
  const char* where = std::getenv("TUTTI_DASHBOARD_RUN");
  REQUIRE(where != nullptr);
  const std::string folder = where;
  Dashboard dashboard{.filename = folder + "/dashboard.jsonl",
                      .report = folder + "/report.html",
                      .flush_seconds = 0.1};
  FakeRun run{dashboard, "1000ep"};
  run.fire(tutti::AfterLoad{});
  while (!std::filesystem::exists(folder + "/end")) {
    run.batch();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (std::filesystem::exists(folder + "/crash")) {
      ::raise(SIGKILL);
    }
  }
  dashboard.close(run.state);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
