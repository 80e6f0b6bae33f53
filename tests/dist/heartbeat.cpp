#include <tutti/dist/heartbeat.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <tutti/dist/launch.hpp>
#include <tutti/dist/process_group.hpp>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

namespace {

// Two ranks of this program; what rank 0 says when its collective fails, and what is left.
struct Launched {
  explicit Launched(const char* mishap, std::chrono::milliseconds hang_timeout = 300s) {
    const EnvironmentVariable what("TUTTI_TEST_MISHAP", mishap);
    const EnvironmentVariable where("TUTTI_TEST_SAID", (folder / "said").c_str());
    status = dist::launch({.nproc = 2,
                           .stdout_file = (folder / "out").string(),
                           .stderr_file = (folder / "err").string(),
                           .cleanup_timeout = 5s,
                           .hang_timeout = hang_timeout,
                           .flight_folder = (folder / "").string(),
                           .command = {"/proc/self/exe", "heartbeat rank: goes on"}});
    said = fs::exists(folder / "said") ? read_bytes(folder / "said") : "nothing";
    std::printf("a rank that %s: the other one failed after %s s\n", mishap,
                said.substr(0, said.find(' ')).c_str());
  }

  TemporaryFolder folder;
  int status = 0;
  std::string said;
};

}  // namespace

TEST_CASE("heartbeat rank: goes on", "[.rank]") {
  const std::string mishap = std::getenv("TUTTI_TEST_MISHAP");
  const auto group = dist::initialize();
  auto since = Clock::now();
  try {
    for (int batch = 0; batch < 1000; ++batch) {
      dist::flight_recorder().begin_batch(batch);
      since = Clock::now();
      if (batch == 3 && group->rank() == 1 && (mishap == "loads" || mishap == "evaluates")) {
        dist::flight_recorder().end_batch();
        const dist::PhaseScope phase(mishap == "loads" ? dist::Phase::load : dist::Phase::evaluate);
        std::this_thread::sleep_for(60s);
      }
      if (batch == 3 && group->rank() == 1) {
        if (mishap == "hangs") {
          std::this_thread::sleep_for(60s);
        }
        if (mishap == "fails" || mishap == "leaves") {
          std::exit(mishap == "fails" ? 7 : 0);
        }
        ::raise(mishap == "stops" ? SIGSTOP : SIGKILL);
      }
      group->all_reduce_value(1.0);
      dist::flight_recorder().end_batch();
    }
  } catch (const std::exception& error) {
    const double waited = std::chrono::duration<double>(Clock::now() - since).count();
    std::ofstream(std::getenv("TUTTI_TEST_SAID")) << waited << ' ' << error.what();
    throw;
  }
}

TEST_CASE("ranks say which of them was killed, and where", "[dist][heartbeat]") {
  const Launched run("is killed");
  CHECK(run.status == 128 + SIGKILL);
  CHECK_THAT(run.said, ContainsSubstring("tutti::dist::all_reduce: rank 0 of 2") &&
                           ContainsSubstring("was in all_reduce, call 4, in batch 3. The first "
                                             "failure of the run: rank 1 of 2 on ") &&
                           EndsWith("was ended by signal 9 (Killed), behind all_reduce, call 3, in "
                                    "batch 3"));
  CHECK(std::stod(run.said) < 5);  // 0.05 on a quiet machine
  CHECK_THAT(read_bytes(run.folder / "attempt0_rank0.json"),
             ContainsSubstring("\"batch\": 3, ") && ContainsSubstring("\"state\": \"failed\""));
}

TEST_CASE("a rank that is stopped is killed before the others' timeout", "[dist][heartbeat]") {
  const Launched run("stops");
  CHECK(run.status == 128 + SIGKILL);
  CHECK_THAT(run.said, ContainsSubstring("The first failure of the run: rank 1 of 2 on ") &&
                           ContainsSubstring(" did not run for 1.") &&
                           EndsWith("s (stopped) and was killed, behind all_reduce, call 3, in "
                                    "batch 3"));
  CHECK(std::stod(run.said) < 10);  // 1.3 on a quiet machine
}

// LibTorch and the program's own objects take their time at both ends of a process.
TEST_CASE("heartbeat rank: stops at its end", "[.rank]") {
  std::atexit([] { ::raise(SIGSTOP); });  // behind the end of the heartbeat, which begins later
  dist::start_heartbeat();
}

TEST_CASE("a rank that is stopped before or behind its signs of life is killed, too",
          "[dist][heartbeat]") {
  const TemporaryFolder folder;
  const auto status_of = [&](std::vector<std::string> command) {
    return dist::launch({.nproc = 2,
                         .stdout_file = (folder / "out").string(),
                         .stderr_file = (folder / "err").string(),
                         .cleanup_timeout = 5s,
                         .command = std::move(command)});
  };
  const auto begin = Clock::now();
  CHECK(status_of({"sh", "-c", "if [ $RANK = 1 ]; then kill -STOP $$; fi"}) == 128 + SIGKILL);
  CHECK(status_of({"/proc/self/exe", "heartbeat rank: stops at its end"}) == 128 + SIGKILL);
  CHECK(Clock::now() - begin < 60s);  // 3 s on a quiet machine; for ever before
}

TEST_CASE("a batch that does not end is noticed, and all write down their calls",
          "[dist][heartbeat]") {
  const Launched run("hangs", 1s);
  CHECK(run.status == 128 + SIGKILL);
  CHECK_THAT(run.said, ContainsSubstring("rank 1 of 2 on ") &&
                           ContainsSubstring("has not ended its batch for ") &&
                           ContainsSubstring("and was killed, behind all_reduce, call 3"));
  CHECK(fs::exists(run.folder / "attempt0_rank0.json"));
  REQUIRE(fs::exists(run.folder / "attempt0_rank1.json"));  // of the one that hangs, too
  CHECK_THAT(
      read_bytes(run.folder / "attempt0_rank1.json"),
      ContainsSubstring("\"batch\": 3, ") &&
          ContainsSubstring("{\"collective_seq_id\": 3, \"profiling_name\": \"all_reduce\""));
}

TEST_CASE("a loader and an evaluation that do not go on are noticed", "[dist][heartbeat]") {
  CHECK_THAT(Launched("loads", 1s).said,
             ContainsSubstring("rank 1 of 2 on ") &&
                 ContainsSubstring("has got no batch from its loader for ") &&
                 ContainsSubstring("and was killed, behind all_reduce, call 3"));
  CHECK_THAT(Launched("evaluates", 1s).said,
             ContainsSubstring("has not ended a batch of evaluation for ") &&
                 ContainsSubstring("and was killed, behind all_reduce, call 3"));
}

TEST_CASE("a phase of an event names it, and a phase inside of another goes back to it",
          "[dist][heartbeat]") {
  using dist::detail::callbacks_of;
  CHECK(callbacks_of(dist::phase_of<BatchEnd>, 30) == "the callbacks of BatchEnd of batch 30");
  CHECK(callbacks_of(dist::phase_of<EvalBeforeAll>, 30) ==
        "the callbacks of EvalBeforeAll after batch 30");
  CHECK(callbacks_of(dist::phase_of<EpochStart>, -1) == "the callbacks of EpochStart");
  CHECK(callbacks_of(static_cast<dist::Phase>(200), -1) == "the callbacks of Event");
  const dist::detail::RunPage page(1, "mine");
  const dist::detail::RankSlot& slot = page.slot(0);
  dist::FlightRecorder recorder;
  CHECK_FALSE(recorder.begin_phase(dist::Phase::load));  // no launcher
  recorder.belongs_to({}, &page.slot(0));
  CHECK_FALSE(recorder.begin_phase(dist::phase_of<BatchEnd>));
  const auto before = recorder.begin_phase(dist::Phase::unwatched);
  CHECK(before == dist::phase_of<BatchEnd>);
  CHECK(slot.phase.load() == static_cast<std::uint32_t>(dist::Phase::unwatched));
  recorder.end_phase(before);
  CHECK(slot.phase.load() == static_cast<std::uint32_t>(dist::phase_of<BatchEnd>));
  CHECK(slot.phase_since.load() != 0);
  recorder.end_phase();
  CHECK(slot.phase_since.load() == 0);
}

TEST_CASE("a rank that ends with a status of its own is named", "[dist][heartbeat]") {
  const Launched run("fails");
  CHECK(run.status == 7);
  CHECK_THAT(run.said, EndsWith("ended with status 7, behind all_reduce, call 3, in batch 3"));
}

TEST_CASE("a rank that ends with status 0 in the middle is named, not the one that waits for it",
          "[dist][heartbeat]") {
  const Launched run("leaves");
  CHECK(run.status != 0);
  CHECK_THAT(run.said, ContainsSubstring("The first failure of the run: rank 1 of 2 on ") &&
                           EndsWith("ended with status 0 while the others went on, behind "
                                    "all_reduce, call 3, in batch 3"));
}

TEST_CASE("heartbeat rank: waits for its record", "[.rank]") {
  dist::start_heartbeat();
  const std::string rank = std::getenv("RANK");
  const fs::path folder = std::getenv("TUTTI_FLIGHT_FOLDER");
  if (rank == "0") {
    ::kill(::getppid(), SIGQUIT);
  }
  const fs::path record = folder / ("attempt0_rank" + rank + ".json");
  for (int i = 0; i < 3000 && !fs::exists(record); ++i) {
    std::this_thread::sleep_for(10ms);
  }
  CHECK(fs::exists(record));
}

TEST_CASE("at SIGQUIT to the launcher all ranks write down their calls, and the run goes on",
          "[dist][heartbeat]") {
  const TemporaryFolder folder;
  const pid_t launcher = ::fork();  // which has one thread
  if (launcher == 0) {
    ::_exit(dist::launch({.nproc = 2,
                          .stdout_file = (folder / "out").string(),
                          .stderr_file = (folder / "err").string(),
                          .flight_folder = (folder / "flight").string(),
                          .command = {"/proc/self/exe", "heartbeat rank: waits for its record"}}));
  }
  int status = 0;
  REQUIRE(::waitpid(launcher, &status, 0) == launcher);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK_THAT(read_bytes(folder / "flight/attempt0_rank0.json"), ContainsSubstring("\"rank\": 0, "));
  CHECK_THAT(read_bytes(folder / "flight/attempt0_rank1.json"), ContainsSubstring("\"rank\": 1, "));
}

TEST_CASE("heartbeat rank: writes its record at a signal", "[.rank]") {
  ::signal(SIGQUIT, SIG_DFL);  // programs that a script starts with & ignore it
  dist::start_heartbeat();
  const std::string rank = std::getenv("RANK");
  const fs::path record =
      fs::path(std::getenv("TUTTI_FLIGHT_FOLDER")) / ("attempt0_rank" + rank + ".json");
  if (rank == "1") {
    ::raise(SIGQUIT);
    for (int i = 0; i < 3000 && !fs::exists(record); ++i) {
      std::this_thread::sleep_for(10ms);
    }
  }
  CHECK(fs::exists(record) == (rank == "1"));
}

TEST_CASE("at SIGQUIT to a rank it alone writes down its calls, and the run goes on",
          "[dist][heartbeat]") {
  const TemporaryFolder folder;
  CHECK(dist::launch(
            {.nproc = 2,
             .stdout_file = (folder / "out").string(),
             .stderr_file = (folder / "err").string(),
             .flight_folder = (folder / "flight").string(),
             .command = {"/proc/self/exe", "heartbeat rank: writes its record at a signal"}}) == 0);
  CHECK_THAT(read_bytes(folder / "flight/attempt0_rank1.json"), ContainsSubstring("\"rank\": 1, "));
}

TEST_CASE("a program that does something else at SIGQUIT keeps that", "[dist][heartbeat]") {
  const TemporaryFolder folder;
  const auto status_at = [&](const char* command) {
    return dist::launch({.nproc = 1,
                         .stdout_file = (folder / "out").string(),
                         .stderr_file = (folder / "err").string(),
                         .flight_folder = (folder / "flight").string(),
                         .command = {"/proc/self/exe", command}});
  };
  CHECK(status_at("heartbeat rank: ends by itself at SIGQUIT") == 23);
  CHECK_FALSE(fs::exists(folder / "flight/attempt0_rank0.json"));
}

TEST_CASE("heartbeat rank: ends by itself at SIGQUIT", "[.rank]") {
  ::signal(SIGQUIT, [](int) { ::_exit(23); });
  dist::start_heartbeat();
  CHECK(::raise(SIGQUIT) == 0);
  FAIL_CHECK("SIGQUIT did not reach the program's own function");
}

TEST_CASE("without tutti-run there is no page and nobody to wait for", "[dist][heartbeat]") {
  const EnvironmentVariable none(dist::detail::page_variable, nullptr);
  const auto begin = Clock::now();
  dist::start_heartbeat();
  CHECK(dist::first_fault(10s).empty());
  CHECK(Clock::now() - begin < 5s);
  CHECK(dist::detail::RunPage::of_launcher() == nullptr);
}

TEST_CASE("a page is that of the launcher that made it", "[dist][heartbeat]") {
  const dist::detail::RunPage page(2, "mine");
  const EnvironmentVariable number(dist::detail::page_variable,
                                   std::to_string(page.file()).c_str());
  {
    const EnvironmentVariable mark(dist::detail::launch_variable, "another's");
    CHECK(dist::detail::RunPage::of_launcher() == nullptr);
  }
  const EnvironmentVariable mark(dist::detail::launch_variable, "mine");
  const auto same = dist::detail::RunPage::of_launcher();
  REQUIRE(same != nullptr);
  CHECK(same->ranks() == 2);
  CHECK(same->fault().empty());
  CHECK(page.tell("rank 1 is lost"));
  CHECK_FALSE(page.tell("rank 0 is lost"));
  CHECK(same->fault() == "rank 1 is lost");
  page.slot(1).batch.store(5);
  CHECK(same->slot(1).batch.load() == 5);
  const EnvironmentVariable nonsense(dist::detail::page_variable, "99999");
  CHECK(dist::detail::RunPage::of_launcher() == nullptr);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
