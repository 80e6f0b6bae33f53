#include <tutti/trainer.hpp>

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "crash/file_calls.hpp"
#include "crash/runs.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
namespace fs = std::filesystem;

namespace {

struct Kills {
  int by_clock = 0;
  int in_save = 0;
};

// A run that is killed again and again, resumed each time, until it reaches its end.
Kills chain(const std::string& folder, const std::string& result, bool background,
            std::mt19937& random) {
  Kills kills;
  while (!fs::exists(result)) {
    TrainerOptions options = crash::options(folder, "30ba");
    options.save_async = background;
    const bool by_clock = background || random() % 3 == 0;
    const auto after =
        static_cast<unsigned>(by_clock ? 0 : 1 + random() % 60);  // operations on files
    const pid_t child = crash::start([&] {
      unsigned count = 0;
      const crash::Watch watch(folder, [&](const crash::Call&) {
        if (++count == after) {
          ::raise(SIGKILL);
        }
      });
      crash::train(options, result);
    });
    if (by_clock) {
      ::usleep(static_cast<useconds_t>(5000 + random() % 40000));
      ::kill(child, SIGKILL);
    }
    const int status = crash::wait_for(child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++(by_clock ? kills.by_clock : kills.in_save);
    } else {
      INFO("it ended with status " << status);
      REQUIRE(crash::went_well(status));
    }
  }
  return kills;
}

// After an epoch's last save and before what follows it.
struct KilledAtEnd final {
  std::int64_t batch = 0;
  void apply(EpochEnd, const State& state) const {
    if (state.timestamp.batch == batch) {
      ::raise(SIGKILL);
    }
  }
};

// Says in a file that the first checkpoint is written, and waits.
struct WaitsToBeKilled final {
  std::string told;
  void apply(BeforeForward, const State& state) const {
    if (state.timestamp.batch == 1) {
      write_bytes(told, "");
      ::pause();
    }
  }
};

at::Tensor weights_of_whole_run(const TemporaryFolder& folder, TrainerOptions options) {
  options.save_folder.clear();
  options.autoresume = false;
  REQUIRE(crash::went_well(
      crash::wait_for(crash::start([&] { crash::train(options, folder / "whole"); }))));
  return crash::weights(folder / "whole");
}

}  // namespace

TEST_CASE("a run killed at fifty random moments ends with the weights of one that was not",
          "[crash][kills]") {
  const TemporaryFolder folder;
  const at::Tensor whole = weights_of_whole_run(folder, crash::options("", "30ba"));
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  Kills all;
  int chains = 0;
  for (; chains < 2 || all.by_clock + all.in_save < 50; ++chains) {  // one writes in the background
    INFO("chain " << chains << ", seed " << seed);
    const std::string name = std::to_string(chains);
    const Kills kills = chain(folder / name, folder / ("weights" + name), chains % 2 == 1, random);
    all.by_clock += kills.by_clock;
    all.in_save += kills.in_save;
    CHECK(at::equal(crash::weights(folder / ("weights" + name)), whole));
  }
  std::printf("kills: %d by the clock, %d at a random file operation, in %d runs\n", all.by_clock,
              all.in_save, chains);
}

TEST_CASE("a run killed between its last save and its end saves that state once",
          "[crash][kills]") {
  const TemporaryFolder folder;
  TrainerOptions options = crash::options(folder / "run", "2ep");  // of seven batches each
  options.save_interval = "7ba";
  const at::Tensor whole = weights_of_whole_run(folder, options);
  const auto run = [&](std::int64_t killed_at) {
    return crash::wait_for(
        crash::start([&] { crash::train(options, folder / "weights", KilledAtEnd{killed_at}); }));
  };
  const int status = run(14);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK_FALSE(fs::exists(folder / "weights"));
  REQUIRE(crash::went_well(run(-1)));
  CHECK(sorted_names(folder / "run") == std::vector<std::string>{"ep0-ba7", "ep1-ba14", "latest"});
  CHECK(at::equal(crash::weights(folder / "weights"), whole));
}

TEST_CASE("of two trainers with one folder the second is refused, until the first is dead",
          "[crash][kills]") {
  const TemporaryFolder folder;
  const TrainerOptions options = crash::options(folder / "run", "14ba");
  const at::Tensor whole = weights_of_whole_run(folder, options);
  const std::string told = folder / "told";
  const pid_t first =
      crash::start([&] { crash::train(options, folder / "never", WaitsToBeKilled{told}); });
  while (!fs::exists(told)) {
    ::usleep(1000);
  }
  const auto second = [&] {
    return crash::wait_for(crash::start([&] {
      try {
        crash::train(options, folder / "weights");
      } catch (const std::exception& error) {
        write_bytes(folder / "refusal", error.what());
        throw;
      }
    }));
  };
  const auto before = sorted_names(folder / "run");
  CHECK_FALSE(crash::went_well(second()));
  CHECK_THAT(read_bytes(folder / "refusal"),
             Catch::Matchers::ContainsSubstring("process " + std::to_string(first) + " on host"));
  CHECK(sorted_names(folder / "run") == before);
  ::kill(first, SIGKILL);
  crash::wait_for(first);
  REQUIRE(crash::went_well(second()));
  CHECK(at::equal(crash::weights(folder / "weights"), whole));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
