#include <tutti/loggers/csv.hpp>

#include <csignal>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include <sys/resource.h>

#include <tutti/core/log.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::CSVLogger;

static_assert(tutti::Recipe<CSVLogger>::valid);
static_assert(tutti::role_of<CSVLogger> == tutti::Role::logger);

namespace {

using Table = tutti::detail::CsvTable;

// Logs in forward and in loss, by microbatch.
struct Net : tiny::Net {
  tutti::Outputs forward(const tutti::Batch& batch) {
    tutti::log("first", batch.inputs().select(0, 0).sum());
    tutti::log("size", batch.inputs().size(0));
    return tiny::Net::forward(batch);
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch& batch) {
    tutti::log("size", [&] { return static_cast<double>(batch.targets().size(0)); });
    return tiny::Net::loss(outputs, batch);
  }
};

tutti::TrainerOptions options(const char* length) {
  return {.train = tiny::batches(4, 6),
          .max_duration = tutti::Time::parse(length),
          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .run_name = "run",
          .progress_bar = false};
}

}  // namespace

TEST_CASE("a step is a row, and a metric that comes later a column", "[loggers]") {
  const TemporaryFolder folder;
  const auto path = (folder / "new/metrics.csv").string();
  Table table;
  table.open("CSVLogger", path);
  table.begin(0, false);
  table.set(0, "a", 0.5);
  table.set(0, "odd, \"name\"", 2);
  table.set(1, "a", std::numeric_limits<double>::quiet_NaN());
  table.flush();
  CHECK(read_bytes(path) == "step,a,\"odd, \"\"name\"\"\"\n0,0.5,2\n1,nan,\n");
  table.set(1, "late", -std::numeric_limits<double>::infinity());
  table.set(1, "a", 0.1);
  table.set(2, "late", 3);
  table.close();
  CHECK(read_bytes(path) == "step,a,\"odd, \"\"name\"\"\",late\n0,0.5,2,\n1,0.1,,-inf\n2,,,3\n");

  table.open("CSVLogger", path);
  CHECK_THROWS_WITH(table.begin(0, false), ContainsSubstring("set overwrite to replace the file"));

  Table again;
  again.open("CSVLogger", path);
  again.begin(1, false);  // row 2 is computed again
  again.set(1, "late", 7);
  again.set(2, "new", 4);
  again.close();
  CHECK(read_bytes(path) ==
        "step,a,\"odd, \"\"name\"\"\",late,new\n0,0.5,2,,\n1,0.1,,7,\n2,,,,4\n");

  again.open("CSVLogger", path);
  again.begin(0, true);
  again.set(0, "b", 1);
  again.close();
  CHECK(read_bytes(path) == "step,b\n0,1\n");
}

TEST_CASE("what a crash left of a row is cut off", "[loggers]") {
  const TemporaryFolder folder;
  const auto path = (folder / "metrics.csv").string();
  write_bytes(path, "step,a,b\n0,1,2\n1,3");
  Table table;
  table.open("CSVLogger", path);
  table.begin(5, false);
  table.flush();
  CHECK(read_bytes(path) == "step,a,b\n0,1,2\n");
  table.set(6, "b", 9);
  table.close();
  CHECK(read_bytes(path) == "step,a,b\n0,1,2\n6,,9\n");
  write_bytes(path, "time,a\n");
  table.open("CSVLogger", path);
  CHECK_THROWS_WITH(table.begin(5, false), ContainsSubstring("begins with the column \"time\""));
}

TEST_CASE("log() is the mean of a batch's microbatches and calls", "[loggers][log][trainer]") {
  const TemporaryFolder folder;
  at::manual_seed(1);
  auto with = options("1ep");
  with.device_train_microbatch_size = 4;  // 4 examples, then 2
  const auto file = folder / "metrics.csv";
  tutti::Trainer trainer{std::make_shared<Net>(), with, CSVLogger{.filename = file.string()},
                         tutti::InMemoryLogger{}};
  trainer.fit();
  CHECK_FALSE(tutti::is_logging());
  const auto& seen = trainer.get<tutti::InMemoryLogger>();
  REQUIRE(seen.series("size").values.size() == 4);
  CHECK(std::abs(seen.latest("size") - (4.0 * 4 + 2.0 * 2) / 6) < 1e-12);
  const at::Tensor x = tiny::batches(4, 6)[3].inputs().sum(1);
  const double expected = (4 * x[0].item<double>() + 2 * x[4].item<double>()) / 6;
  CHECK(std::abs(seen.latest("first") - expected) < 1e-6);
  CHECK(read_bytes(file).starts_with("step,time/"));
  CHECK_THAT(read_bytes(file), ContainsSubstring("first,size"));
}

TEST_CASE("a resumed run has the table of one that was never ended, at its own interval",
          "[loggers][resume][trainer]") {
  const TemporaryFolder folder;
  const auto run = [&](const char* name, const char* length, const std::string& load) {
    auto with = options(length);
    with.save_folder = (folder / (std::string(name) + "-" + length)).string();
    with.load_path = load;
    with.eval = {{"test", tiny::batches(1)}};
    tutti::Trainer trainer{
        std::make_shared<Net>(), with,
        CSVLogger{.filename = (folder / name).string() + ".csv", .metrics_interval = 2},
        tutti::InMemoryLogger{.metrics_interval = 3}};
    trainer.fit();
    return trainer.get<tutti::InMemoryLogger>().series("size").values.size();
  };
  at::manual_seed(1);
  CHECK(run("whole", "2ep", "") == 3);  // steps 0, 3, 6
  at::manual_seed(1);
  run("part", "1ep", "");
  run("part", "2ep", (folder / "part-1ep/ep1-ba4").string());
  const std::string whole = read_bytes(folder / "whole.csv");
  CHECK(read_bytes(folder / "part.csv") == whole);
  CHECK_THAT(whole, ContainsSubstring("\n2,") && ContainsSubstring("\n4,"));
  CHECK_THAT(whole, !ContainsSubstring("\n3,"));
}

TEST_CASE("rows that a full disk refuses wait and are written when there is room", "[loggers]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "metrics.csv").string();
  const auto allow = [](rlim_t bytes) {  // as a disk with so much room
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  const Warnings warnings;
  {
    tutti::detail::CsvTable table;
    table.open("CSVLogger", path);
    table.begin(0, false);
    for (int step = 0; step < 12; ++step) {
      if (step == 4) {
        allow(20);
      } else if (step == 9) {
        allow(RLIM_INFINITY);
      }
      table.set(step, "loss", 0.5);
      if (step == 6) {
        table.set(step, "late\nname", 2);
      }
      table.flush();
    }
    table.set(12, "late name", 3);
    allow(20);
    table.set(13, "loss", 1);
    table.close();
    allow(RLIM_INFINITY);
  }
  std::signal(SIGXFSZ, before);
  CHECK(read_bytes(path) ==
        "step,loss,late name\n0,0.5,\n1,0.5,\n2,0.5,\n3,0.5,\n4,0.5,\n5,0.5,\n6,0.5,2\n7,0.5,\n"
        "8,0.5,\n9,0.5,\n10,0.5,\n11,0.5,\n");
  REQUIRE(warnings.texts.size() == 3);
  CHECK_THAT(warnings.texts[0], ContainsSubstring("training goes on, and it is tried again"));
  CHECK_THAT(warnings.texts[2], ContainsSubstring("2 rows could not be written to"));
}

TEST_CASE("CSVLogger refuses what it cannot do", "[loggers]") {
  CHECK_THROWS_WITH(CSVLogger{.filename = ""}.validate(), ContainsSubstring("name the file"));
  CHECK_THROWS_WITH(CSVLogger{.metrics_interval = 0}.validate(),
                    ContainsSubstring("metrics_interval is 0, expected 1 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
