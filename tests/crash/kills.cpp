#include <tutti/trainer.hpp>

#include <csignal>
#include <random>
#include <string>

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

}  // namespace

TEST_CASE("a run killed at fifty random moments ends with the weights of one that was not",
          "[crash][kills]") {
  const TemporaryFolder folder;
  TrainerOptions plain = crash::options("", "30ba");
  plain.autoresume = false;
  REQUIRE(crash::went_well(
      crash::wait_for(crash::start([&] { crash::train(plain, folder / "whole"); }))));
  const at::Tensor whole = crash::weights(folder / "whole");
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

}  // namespace UNITY_BUILD_UNIQUE_ID
