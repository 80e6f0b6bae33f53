#include <tutti/train/signals.hpp>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "crash/runs.hpp"
#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
namespace fs = std::filesystem;

namespace {

// Says in a file that a batch has begun, and takes its time.
struct Slow final {
  std::string told;
  unsigned milliseconds = 0;
  void apply(BeforeForward, const State& state) const {
    if (state.timestamp.batch == 2) {
      write_bytes(told, "");
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
  }
};

// Catch2 has handlers of its own, which a plain program has not.
void as_a_plain_program() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

pid_t start(const TemporaryFolder& folder, TrainerOptions options, unsigned milliseconds) {
  const std::string told = folder / "told";
  const pid_t child = crash::start([&] {
    as_a_plain_program();
    crash::train(options, folder / "weights", Slow{told, milliseconds});
  });
  while (!fs::exists(told)) {
    ::usleep(1000);
  }
  fs::remove(told);
  return child;
}

TrainerOptions rare(const TemporaryFolder& folder) {
  TrainerOptions out = crash::options(folder / "run", "8ba");
  out.save_interval = "100ba";
  out.on_signal = OnSignal::exit;  // as cli::Program sets it
  return out;
}

}  // namespace

TEST_CASE("SIGTERM and SIGINT end the process with 128 plus the signal, all saved",
          "[crash][signals]") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const TemporaryFolder folder;
    const pid_t child = start(folder, rare(folder), 300);
    ::kill(child, signal);
    ::usleep(50000);
    ::kill(child, SIGINT + SIGTERM - signal);  // so soon it is taken for the same request
    const int status = crash::wait_for(child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + signal);
    CHECK(fs::exists(folder / "run/ep0-ba3/manifest.json"));
    CHECK(fs::read_symlink(folder / "run/latest") == "ep0-ba3");
    CHECK_FALSE(fs::exists(folder / "weights"));
  }
}

TEST_CASE("a process that says nothing of signals is not ended by them, all saved",
          "[crash][signals]") {
  const TemporaryFolder folder;
  TrainerOptions options = rare(folder);
  options.on_signal.reset();
  const pid_t child = start(folder, options, 300);
  ::kill(child, SIGTERM);
  CHECK(crash::went_well(crash::wait_for(child)));
  CHECK(fs::read_symlink(folder / "run/latest") == "ep0-ba3");
  CHECK(fs::exists(folder / "weights"));  // what comes after fit() was done
}

TEST_CASE("a second signal ends the process at once", "[crash][signals]") {
  const TemporaryFolder folder;
  const pid_t child = start(folder, rare(folder), 20000);
  ::kill(child, SIGTERM);
  ::usleep(1200000);
  ::kill(child, SIGTERM);
  const int status = crash::wait_for(child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK_FALSE(fs::exists(folder / "run/latest"));
}

TEST_CASE("signals that fit is told to ignore have their usual effect", "[crash][signals]") {
  const TemporaryFolder folder;
  TrainerOptions options = rare(folder);
  options.on_signal = OnSignal::ignore;
  const pid_t child = start(folder, options, 5000);
  ::kill(child, SIGTERM);
  const int status = crash::wait_for(child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
