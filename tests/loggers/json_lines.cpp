#include <tutti/loggers/json_lines.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tutti/callbacks/checkpoint_saver.hpp>
#include <tutti/core/detail/json_parse.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/loggers/csv.hpp>
#include <tutti/loggers/file.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/trainer.hpp>

#include "loggers/run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::JSONLinesLogger;
using tutti::detail::Json;

static_assert(tutti::Recipe<JSONLinesLogger>::valid);
static_assert(tutti::role_of<JSONLinesLogger> == tutti::Role::logger);

namespace {

// Every line parses; a torn one throws.
std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> out;
  std::string text = read_bytes(path);
  REQUIRE((text.empty() || text.ends_with('\n')));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    out.push_back(tutti::detail::parse_json(text.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

// "start 0, hyperparameters, metrics 0 loss/train/total time/batch": what came, without times.
std::string outline(const std::vector<Json>& lines) {
  std::string out;
  for (const Json& line : lines) {
    out += (out.empty() ? "" : ", ") + line["type"].string();
    out += line.contains("step") ? " " + std::to_string(line["step"].integer()) : "";
    if (line["type"].string() == "metrics") {
      for (const auto& [key, value] : line["values"].object()) {
        out += " " + key;
      }
    }
  }
  return out;
}

// Logs at the end of a batch, so at the step of a checkpoint that is written there.
struct LogsBehind {
  void apply(tutti::BatchEnd, tutti::State& state) const {
    state.log_metrics({{"behind", state.timestamp.batch * 10}, {"no UTF-8: \xFF", std::nan("")}});
  }
};

struct Crash {
  void apply(tutti::BatchEnd, const tutti::State& state) const {
    if (state.timestamp.batch == at) {
      throw std::runtime_error("crash");
    }
  }
  std::int64_t at = -1;
};

tutti::TrainerOptions options(tutti::Time duration, const std::string& load = {}) {
  return {.train = tiny::batches(4),
          .max_duration = duration,
          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .run_name = "run",
          .progress_bar = false,
          .load_path = load};
}

}  // namespace

TEST_CASE("a step's metrics are one line, an evaluation's another", "[loggers][trace]") {
  const TemporaryFolder folder;
  const auto path = folder / "new/metrics.jsonl";
  JSONLinesLogger logger{.filename = path.string()};
  {
    FakeRun run{logger, "1ep"};
    run.state.run_name = "brisk \"otter\"";
    run.fire(tutti::AfterLoad{});
    run.batch();
    CHECK(outline(lines_of(path)) ==
          "start 0, hyperparameters, metrics 0 loss/train/total time/batch");
    run.epoch();
    run.evaluate();
    run.state.log_metrics({{"late", 1.0}});
    logger.close(run.state);
  }
  const auto lines = lines_of(path);
  CHECK(outline(lines) ==
        "start 0, hyperparameters, metrics 0 loss/train/total time/batch, "
        "metrics 1 loss/train/total time/batch, metrics 2 loss/train/total time/batch, "
        "metrics 3 metrics/test/MulticlassAccuracy, metrics 3 late, end 3");
  CHECK(lines[0]["run_name"].string() == "brisk \"otter\"");
  CHECK(lines[1]["values"]["lr"].number() == 0.1);
  CHECK(lines[3]["values"]["loss/train/total"].number() == 0.5);
  CHECK(lines[0]["time"].number() > 1.7e9);
  CHECK(lines.back()["status"].string() == "finished");
}

TEST_CASE("numbers keep every bit, those that JSON lacks are words, text becomes UTF-8",
          "[loggers][law]") {
  const TemporaryFolder folder;
  const auto path = folder / "m.jsonl";
  JSONLinesLogger logger{.filename = path.string()};
  FakeRun run{logger, "1ep"};
  run.fire(tutti::AfterLoad{});
  constexpr double inf = std::numeric_limits<double>::infinity();
  run.state.log_metrics({{"third", 1.0 / 3},
                         {"nan", std::numeric_limits<double>::quiet_NaN()},
                         {"inf", inf},
                         {"-inf", -inf}});
  const std::vector<std::string> columns{"a", "b"};
  const std::vector<std::vector<std::string>> rows{{"\xC3\xA9\xC3", "line\nbreak\x01"}};
  run.state.logger.log_table({.name = "t", .columns = columns, .rows = rows}, 0);
  run.state.logger.log_hyperparameters({{"on", true}, {"n", std::int64_t{3}}});
  logger.close(run.state);
  const auto lines = lines_of(path);
  REQUIRE(outline(lines) ==
          "start 0, hyperparameters, table 0, hyperparameters, metrics 0 third nan inf -inf, "
          "end 0");
  CHECK(lines[4]["values"]["third"].number() == 1.0 / 3);
  CHECK(lines[4]["values"]["nan"].string() == "NaN");
  CHECK(lines[4]["values"]["inf"].string() == "Infinity");
  CHECK(lines[4]["values"]["-inf"].string() == "-Infinity");
  CHECK(lines[2]["columns"][1].string() == "b");
  CHECK(lines[2]["rows"][0][0].string() == "\xC3\xA9\xEF\xBF\xBD");
  CHECK(lines[2]["rows"][0][1].string() == "line\nbreak\x01");
  CHECK(lines[3]["values"]["on"].boolean());
  CHECK(lines[3]["values"]["n"].integer() == 3);
}

TEST_CASE("a resumed run appends, and a line that a crash left half is removed",
          "[loggers][resume]") {
  const TemporaryFolder folder;
  const auto path = folder / "m.jsonl";
  const std::string checkpoint = (folder / "saved").string();
  {
    tutti::Trainer trainer{tiny::net(), options("4ba"), JSONLinesLogger{.filename = path.string()}};
    trainer.fit();
    trainer.save_checkpoint(checkpoint);
  }
  const auto first = lines_of(path);
  write_bytes(path, read_bytes(path) + R"({"type": "metr)");
  tutti::Trainer trainer{tiny::net(), options("6ba", checkpoint),
                         JSONLinesLogger{.filename = path.string(), .overwrite = true}};
  trainer.fit();
  trainer.close();
  auto lines = lines_of(path);
  REQUIRE(lines.size() > first.size());
  CHECK(std::equal(first.begin(), first.end(), lines.begin()));
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(first.size()));
  CHECK(outline(lines).starts_with("start 4, hyperparameters, "));
  CHECK_THAT(outline(lines), ContainsSubstring("metrics 4 "));
  CHECK_THAT(outline(lines), ContainsSubstring("metrics 5 "));
  CHECK(outline(lines).ends_with("end 6"));
}

TEST_CASE("nothing of the checkpoint's step is missing behind a resumed run's start",
          "[loggers][resume]") {
  const TemporaryFolder folder;
  const auto path = folder / "m.jsonl";
  const std::string checkpoint = (folder / "saved").string();
  {
    tutti::Trainer trainer{
        tiny::net(), options("6ba"), JSONLinesLogger{.filename = path.string()}, LogsBehind{},
        tutti::CheckpointSaver{
            .folder = checkpoint, .filename = "ba{batch}", .save_interval = "4ba"}};
    trainer.fit();
  }
  {
    tutti::Trainer trainer{tiny::net(), options("6ba", checkpoint + "/ba4"),
                           JSONLinesLogger{.filename = path.string()}, LogsBehind{}};
    trainer.fit();
  }
  std::map<std::int64_t, double> behind;  // by the rule that docs/loggers.md gives readers
  for (const Json& line : lines_of(path)) {
    if (line["type"].string() == "start") {
      behind.erase(behind.lower_bound(line["step"].integer()), behind.end());
    } else if (line["type"].string() == "metrics" && line["values"].contains("behind")) {
      behind[line["step"].integer()] = line["values"]["behind"].number();
    }
  }
  CHECK(behind ==
        std::map<std::int64_t, double>{{1, 10}, {2, 20}, {3, 30}, {4, 40}, {5, 50}, {6, 60}});

  // A run that has no such logger lacks nothing.
  Warnings warnings;
  tutti::Trainer without{tiny::net(), options("6ba", checkpoint + "/ba4"), LogsBehind{}};
  without.fit();
  for (const std::string& text : warnings.texts) {
    CHECK(text.find("JSONLinesLogger") == std::string::npos);
  }
}

TEST_CASE("a half line that cannot be removed is ended before the next one", "[loggers][resume]") {
  const int file = ::memfd_create("tutti", MFD_ALLOW_SEALING);  // a disk that lets nothing shrink
  REQUIRE(file >= 0);
  const std::string half = "{\"type\": \"end\"}\n{\"type\": \"metr";
  REQUIRE(::write(file, half.data(), half.size()) == static_cast<ssize_t>(half.size()));
  REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  JSONLinesLogger logger{.filename = path};
  FakeRun run{logger, "2ep"};
  run.state.timestamp.batch = 4;
  run.fire(tutti::AfterLoad{});
  logger.close(run.state);
  const std::string text = read_bytes(path);
  CHECK_THAT(text, Catch::Matchers::StartsWith(half + "\n{\"type\": \"start\", \"step\": 4"));
  CHECK_THAT(text, !ContainsSubstring("\n\n"));
  ::close(file);
}

TEST_CASE("a run that begins anew refuses another's file, or replaces it when it may",
          "[loggers]") {
  const TemporaryFolder folder;
  const auto path = folder / "m.jsonl";
  write_bytes(path, "{\"other\": 1}\n");
  const auto make = [&](bool overwrite) {
    tutti::Trainer trainer{tiny::net(), options("1ba"),
                           JSONLinesLogger{.filename = path.string(), .overwrite = overwrite}};
    trainer.fit();
  };
  CHECK_THROWS_WITH(make(false), ContainsSubstring("m.jsonl' is from an earlier run") &&
                                     ContainsSubstring("set overwrite to replace the file"));
  CHECK(read_bytes(path) == "{\"other\": 1}\n");
  make(true);
  CHECK(outline(lines_of(path)).starts_with("start 0, hyperparameters, metrics 0 "));
}

TEST_CASE("a run that fails says so in its last line, and nothing before it is lost",
          "[loggers][resume]") {
  const TemporaryFolder folder;
  const auto path = folder / "m.jsonl";
  tutti::Trainer trainer{tiny::net(), options("4ba"), JSONLinesLogger{.filename = path.string()},
                         Crash{.at = 2}};
  CHECK_THROWS_WITH(trainer.fit(), "crash");
  const auto lines = lines_of(path);
  CHECK_THAT(outline(lines), ContainsSubstring("metrics 1 "));
  CHECK(lines.back()["status"].string() == "failed");
}

TEST_CASE("a run with autoresume that died before its first checkpoint goes on in its files",
          "[loggers][resume]") {
  const TemporaryFolder folder;
  const auto start = [&](int crash_at, bool autoresume) {
    tutti::TrainerOptions with = options("4ba");
    with.run_folder = folder.path().string();
    with.autoresume = autoresume;
    tutti::Trainer trainer{tiny::net(),         with,
                           JSONLinesLogger{},   tutti::CSVLogger{},
                           tutti::FileLogger{}, Crash{.at = crash_at}};
    trainer.fit();
  };
  CHECK_THROWS_WITH(start(2, true), "crash");
  const std::string before = read_bytes(folder / "metrics.jsonl");
  CHECK_THROWS_WITH(start(-1, false), ContainsSubstring("is from an earlier run") &&
                                          ContainsSubstring("set autoresume"));
  start(-1, true);
  CHECK(read_bytes(folder / "metrics.jsonl").starts_with(before));
  CHECK(lines_of(folder / "metrics.jsonl").back()["status"].string() == "finished");
  const std::string table = read_bytes(folder / "metrics.csv");
  CHECK(std::count(table.begin(), table.end(), '\n') ==
        6);  // the head, and steps 0 to 4, each once
}

TEST_CASE("a run that a signal ended has stopped", "[loggers]") {
  const TemporaryFolder folder;
  JSONLinesLogger logger{.filename = (folder / "m.jsonl").string()};
  FakeRun run{logger, "1ep"};
  run.fire(tutti::AfterLoad{});
  run.state.logger.log_result({.state = run.state, .complete = false});
  logger.close(run.state);
  CHECK(lines_of(folder / "m.jsonl").back()["status"].string() == "stopped");
}

TEST_CASE("a file that cannot be written is refused at once, with the reason", "[loggers]") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  JSONLinesLogger logger{.filename = (folder / "file/m.jsonl").string()};
  using Run = FakeRun<JSONLinesLogger>;
  CHECK_THROWS_WITH(Run(logger, "1ep"), ContainsSubstring("cannot write '") &&
                                            ContainsSubstring("Not a directory") &&
                                            ContainsSubstring("set filename"));
  CHECK_NOTHROW(JSONLinesLogger{.flush_interval = 1}.validate());
  CHECK_THROWS_WITH(JSONLinesLogger{.flush_interval = 0}.validate(),
                    ContainsSubstring("flush_interval is 0"));
}

TEST_CASE("a full disk warns and does not stop the run", "[loggers]") {
  JSONLinesLogger logger{.filename = "/dev/full"};
  FakeRun run{logger, "2ep"};
  CHECK_NOTHROW(run.fire(tutti::AfterLoad{}));
  CHECK_NOTHROW(run.epoch());
  CHECK_NOTHROW(logger.close(run.state));
}

TEST_CASE("only rank 0 writes, unless every rank has a file of its own", "[loggers][dist]") {
  const TemporaryFolder folder;
  const auto path = folder / "m-{rank}.jsonl";
  JSONLinesLogger logger{.filename = path.string()};
  FakeRun run{logger, "1ep", 1};
  run.fire(tutti::AfterLoad{});
  run.epoch();
  logger.close(run.state);
  CHECK(std::filesystem::is_empty(folder.path()));

  JSONLinesLogger each{.filename = path.string(), .rank_zero_only = false};
  FakeRun other{each, "1ep", 1};
  other.fire(tutti::AfterLoad{});
  each.close(other.state);
  CHECK(outline(lines_of(folder / "m-1.jsonl")) == "start 0, hyperparameters, end 0");

  JSONLinesLogger same{.filename = (folder / "m.jsonl").string(), .rank_zero_only = false};
  tutti::State state;
  state.world_size = 2;
  CHECK_THROWS_WITH(same.apply(tutti::Init{}, state), ContainsSubstring("put {rank} into it"));
}

// Not run by itself: follow_metrics.py names the file and reads it with examples/follow_metrics.py.
TEST_CASE("a run for the follower to read", "[.][writer]") {
  const char* file = std::getenv("TUTTI_JSON_LINES_FILE");
  REQUIRE(file != nullptr);
  tutti::Trainer trainer(tiny::net(), options("2ep"), JSONLinesLogger{.filename = file});
  trainer.fit();
  trainer.close();
}

}  // namespace UNITY_BUILD_UNIQUE_ID
