#include <tutti/train/requeue.hpp>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <tutti/core/on.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

// A variable of the environment as long as this lives.
struct Variable {
  Variable(const char* its_name, const std::string& value) : name(its_name) {
    const char* now = std::getenv(name);
    before = now == nullptr ? "" : now;
    ::setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { before.empty() ? ::unsetenv(name) : ::setenv(name, before.c_str(), 1); }
  const char* name;
  std::string before;
};

// A folder with a scontrol that notes what it is asked.
struct Slurm {
  explicit Slurm(int status) : path("PATH", folder.path().string() + ":" + std::getenv("PATH")) {
    std::ofstream(folder / "scontrol")
        << "#!/bin/sh\necho \"$@\" >> " << (folder / "asked").string()
        << "\necho no such job >&2\nexit " << status << "\n";
    std::filesystem::permissions(folder / "scontrol", std::filesystem::perms::owner_all);
  }
  [[nodiscard]] std::string asked() const {
    std::ifstream in(folder / "asked");
    return {std::istreambuf_iterator<char>(in), {}};
  }
  TemporaryFolder folder;
  Variable path;
  Variable job{"SLURM_JOB_ID", "4711"};
};

TrainerOptions options(const TemporaryFolder& folder) {
  return {.train = tiny::batches(8),
          .max_duration = "2ep",
          .optimizer = SGD{.lr = 0.1},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false,
          .save_folder = (folder / "run").string(),
          .save_interval = "100ba",
          .autoresume = true};
}

// Trains until SIGUSR1 comes in the second batch, if it does; the batches that were trained.
std::int64_t run(const TrainerOptions& how, bool signal) {
  Trainer trainer(tiny::net(), how, on<BatchStart>([signal](const State& state) {
                    if (signal && state.timestamp.batch == 1) {
                      ::raise(SIGUSR1);
                    }
                  }));
  trainer.fit();
  CHECK(trainer.stop_signal() == (signal ? SIGUSR1 : 0));
  return trainer.state().timestamp.batch;
}

}  // namespace

TEST_CASE("SIGUSR1 in a job of Slurm saves, and the job is run again and goes on",
          "[train][signals][slurm]") {
  const Slurm slurm(0);
  const TemporaryFolder folder;
  Warnings warnings;
  CHECK(run(options(folder), true) == 2);
  CHECK(slurm.asked() == "requeue 4711\n");
  CHECK_THAT(warnings.texts.back(), ContainsSubstring("asked Slurm to run the job 4711 again"));
  CHECK(run(options(folder), false) == 16);
  CHECK(slurm.asked() == "requeue 4711\n");
}

TEST_CASE("a job of an array is run again by its place in it", "[train][signals][slurm]") {
  const Slurm slurm(0);
  const Variable array("SLURM_ARRAY_JOB_ID", "4700");
  const Variable task("SLURM_ARRAY_TASK_ID", "3");
  CHECK(train::slurm_job() == "4700_3");
}

TEST_CASE("a job that cannot go on is not run again, and a failure is said",
          "[train][signals][slurm][failure]") {
  const TemporaryFolder folder;
  TrainerOptions how = options(folder);
  {
    const Slurm slurm(1);
    Warnings warnings;
    run(how, true);
    CHECK(slurm.asked() == "requeue 4711\n");
    CHECK_THAT(warnings.texts.back(), ContainsSubstring("failed (status 1: no such job"));
  }
  const Slurm slurm(0);
  how.save_folder = (folder / "other").string();
  how.autoresume = false;
  Warnings warnings;
  run(how, true);
  CHECK_THAT(warnings.texts.back(), ContainsSubstring("would begin anew"));
  how.save_folder = (folder / "third").string();
  how.autoresume = true;
  how.auto_requeue = false;
  run(how, true);
  CHECK(slurm.asked().empty());
}

TEST_CASE("outside of Slurm SIGUSR1 is left alone", "[train][signals][slurm]") {
  REQUIRE(std::getenv("SLURM_JOB_ID") == nullptr);
  struct sigaction before{};
  ::sigaction(SIGUSR1, nullptr, &before);
  const train::SignalScope scope(true, false);
  struct sigaction now{};
  ::sigaction(SIGUSR1, nullptr, &now);
  CHECK(now.sa_handler == before.sa_handler);
  train::requeue({}, {}, SIGUSR1);  // nothing to ask
}

}  // namespace UNITY_BUILD_UNIQUE_ID
