#include <tutti/dist/launch.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/optim/schedules.hpp>
#include <tutti/trainer.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// Runs of two ranks under tutti-run, on one machine or on two as far as launchers know, whose ranks
// and launchers are killed, or stopped, at random moments. TUTTI_SOAK_KILLS says how often, 6 by
// default; TUTTI_SOAK_SEED repeats a run.

using namespace tutti;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

namespace {

struct Slow final {  // so that kills meet batches and saves
  void apply(AfterForward, State&) const { std::this_thread::sleep_for(15ms); }
};

constexpr const char* soak_variable = "TUTTI_SOAK_RUN";

// The launchers of one run: one with two ranks, or two that meet, with one rank each.
class Fleet {
 public:
  Fleet(std::string folder, int machines)
      : folder_(std::move(folder)), launchers_(static_cast<std::size_t>(machines), -1) {
    std::ofstream(folder_ + ".token") << std::string(40, 's');
    ::chmod((folder_ + ".token").c_str(), 0600);
    for (std::size_t i = 0; i < launchers_.size(); ++i) {
      start(i);
    }
  }
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;
  ~Fleet() {
    for (const pid_t launcher : launchers_) {
      if (launcher > 0) {
        ::kill(launcher, SIGKILL);
        ::waitpid(launcher, nullptr, 0);
      }
    }
  }

  // Whether all launchers have ended with status 0. One that ended with 1, since the launcher at
  // which they met was killed, is started again.
  bool is_over() {
    bool over = true;
    for (std::size_t i = 0; i < launchers_.size(); ++i) {
      int status = 0;
      if (launchers_[i] > 0 && ::waitpid(launchers_[i], &status, WNOHANG) == launchers_[i]) {
        launchers_[i] = -1;
        const bool again = launchers_.size() > 1 && WIFEXITED(status) && WEXITSTATUS(status) == 1;
        INFO(read_bytes(said()));
        CHECK((status == 0 || again));
        if (again) {
          start(i);
        }
      }
      over = over && launchers_[i] < 0;
    }
    return over;
  }

  void kill_and_start(std::size_t which) {
    const pid_t launcher = launchers_[which % launchers_.size()];
    if (launcher > 0) {
      ::kill(launcher, SIGKILL);
      ::waitpid(launcher, nullptr, 0);
      start(which % launchers_.size());
    }
  }

  [[nodiscard]] std::string said() const { return folder_ + ".said"; }

 private:
  void start(std::size_t which) {
    const bool alone = launchers_.size() == 1;
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int out = ::open(said().c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      ::setenv("TUTTI_SOAK_FOLDER", folder_.c_str(), 1);
      const int both = static_cast<int>(launchers_.size());
      try {
        ::_exit(dist::launch({.nproc = alone ? 2 : 1,
                              .cleanup_timeout = 5s,
                              .max_restarts = 100'000,
                              .restart_delay = 0ms,
                              .min_uptime = 0ms,
                              .token_file = alone ? "" : folder_ + ".token",
                              .rdzv = alone ? "" : "127.0.0.1:" + std::to_string(port_),
                              .least_nodes = both,
                              .most_nodes = both,
                              .node_timeout = 5s,
                              .command = {"/proc/self/exe", "soak rank: trains"}}));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
    }
    launchers_[which] = pid;
  }

  std::string folder_;
  std::vector<pid_t> launchers_;
  int port_ = tutti_test::free_port();
};

// What runs of it. The launcher does not: it was not started with the variable.
std::vector<pid_t> of_run(const std::string& mark) {
  return dist::detail::marked_processes(mark);
}

bool gone_within(const std::string& mark, std::chrono::seconds limit) {
  const auto end = Clock::now() + limit;
  while (!of_run(mark).empty()) {
    if (Clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

struct Counts {
  int killed = 0;
  int stopped = 0;
  int launchers = 0;
  int runs = 0;
  [[nodiscard]] int all() const { return killed + stopped + launchers; }
};

// One run to its end, through so many mishaps at most. Returns false when it hangs.
bool survive(const std::string& folder, int machines, int most, Counts& counts,
             std::mt19937& random) {
  const std::string mark = std::string(soak_variable) + "=" + folder;
  const EnvironmentVariable marked(soak_variable, folder.c_str());
  Fleet fleet(folder, machines);
  auto limit = Clock::now() + 120s;
  for (;;) {
    const auto next = Clock::now() + std::chrono::milliseconds(300 + random() % 4000);
    while (Clock::now() < next || most <= 0) {
      if (fleet.is_over()) {
        CHECK(gone_within(mark, 10s));
        return true;
      }
      if (Clock::now() > limit) {
        UNSCOPED_INFO(read_bytes(fleet.said()));
        return false;
      }
      std::this_thread::sleep_for(10ms);
    }
    const std::vector<pid_t> ranks = of_run(mark);
    if (ranks.empty()) {
      continue;
    }
    limit = Clock::now() + 120s;
    --most;
    const auto choice = random() % 10;
    if (choice == 0) {
      fleet.kill_and_start(random());
      ++counts.launchers;
    } else {
      ::kill(ranks[random() % ranks.size()], choice == 1 ? SIGSTOP : SIGKILL);
      ++(choice == 1 ? counts.stopped : counts.killed);
    }
  }
}

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != 0 ? std::atoi(text) : otherwise;
}

}  // namespace

TEST_CASE("soak rank: trains", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_SOAK_FOLDER");
  const auto model = tiny::net(1, 0.3);
  Trainer trainer(model,
                  {.train = tiny::batches(7),
                   .max_duration = "120ba",
                   .optimizer = DecoupledSGDW{.lr = 0.05, .momentum = 0.9},
                   .schedule = CosineAnnealing{},
                   .device = "cpu",
                   .seed = 3,
                   .run_name = "calm-motet",
                   .progress_bar = false,
                   .save_folder = folder + ".saved",
                   .save_interval = "1ba",
                   .save_num_checkpoints_to_keep = 2,
                   .autoresume = true},
                  Slow{});
  trainer.fit();
  if (dist::rank() == 0) {
    fs::remove(folder + ".weights");  // of an attempt that was killed after it had written them
    checkpoint::write_safetensors(folder + ".weights", {{"weights", tiny::flat(*model)}});
  }
}

TEST_CASE("runs whose ranks and launchers are killed end as if they were not", "[dist][.soak]") {
  const TemporaryFolder folder;
  const int wanted = number_of("TUTTI_SOAK_KILLS", 6);
  const auto seed = static_cast<unsigned>(
      number_of("TUTTI_SOAK_SEED", static_cast<int>(std::random_device{}() >> 1U)));
  std::mt19937 random(seed);
  INFO("TUTTI_SOAK_SEED=" << seed);
  Counts counts;
  REQUIRE(survive((folder / "whole").string(), 1, 0, counts, random));
  const auto weights = [&](const std::string& name) {
    return checkpoint::read_safetensors((folder / (name + ".weights")).string()).at(0).second;
  };
  const at::Tensor whole = weights("whole");
  const auto begin = Clock::now();
  for (; counts.all() < wanted; ++counts.runs) {  // on one machine and on two in turn
    const std::string name = "run" + std::to_string(counts.runs);
    const int most = std::min(wanted - counts.all(), wanted < 25 ? (wanted + 1) / 2 : 25);
    REQUIRE(survive((folder / name).string(), 1 + counts.runs % 2, most, counts, random));
    CHECK(at::equal(weights(name), whole));
    for (const auto& entry : fs::recursive_directory_iterator(folder / (name + ".saved"))) {
      CHECK(entry.path().string().find(".tmp") == std::string::npos);
    }
  }
  std::printf(
      "soak: %d ranks killed, %d stopped, %d launchers killed in %d runs, every other with two "
      "launchers that meet, %.0f s; no run hung, no process was left, all weights equal\n",
      counts.killed, counts.stopped, counts.launchers, counts.runs,
      std::chrono::duration<double>(Clock::now() - begin).count());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
