#include <tutti/dist/launch.hpp>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include <tutti/dist/process_group.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using dist::launch;
using dist::LaunchOptions;
namespace fs = std::filesystem;

namespace {

// What is written to stderr while it lives.
class Said {
 public:
  explicit Said(const fs::path& file)
      : file_(file), before_(::dup(2)), now_(::open(file.c_str(), O_CREAT | O_WRONLY, 0600)) {
    ::dup2(now_, 2);
  }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;
  ~Said() { end(); }
  std::string end() {
    if (before_ >= 0) {
      ::dup2(before_, 2);
      ::close(before_);
      ::close(now_);
      before_ = -1;
    }
    return read_bytes(file_);
  }

 private:
  fs::path file_;
  int before_;
  int now_;
};

LaunchOptions shell(int nproc, const std::string& script, const TemporaryFolder& folder) {
  return {.nproc = nproc,
          .stdout_file = (folder / "out-{rank}-of-{world_size}").string(),
          .stderr_file = (folder / "err-{rank}").string(),
          .command = {"sh", "-c", script}};
}

// Signals this thread, which launches, when a file is there.
std::thread signal_when(const fs::path& file, int signal, int times = 1) {
  return std::thread([file, signal, times, launcher = ::pthread_self()] {
    for (int i = 0; i < times; ++i) {
      while (!fs::exists(file)) {
        std::this_thread::sleep_for(10ms);
      }
      std::this_thread::sleep_for(200ms);
      ::pthread_kill(launcher, signal);
    }
  });
}

}  // namespace

TEST_CASE("every rank gets its place and files of its own", "[dist][launch]") {
  const TemporaryFolder folder;
  LaunchOptions options =
      shell(3,
            "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR >> " +
                (folder / "place").string() + "-$RANK; echo said $RANK; echo told >&2",
            folder);
  CHECK(launch(options) == 0);
  CHECK(read_bytes(folder / "place-0") == "0 3 0 3 0 127.0.0.1\n");
  CHECK(read_bytes(folder / "place-2") == "2 3 2 3 0 127.0.0.1\n");
  CHECK(read_bytes(folder / "out-1-of-3") == "said 1\n");
  CHECK(read_bytes(folder / "err-2") == "told\n");
  CHECK_FALSE(fs::exists(folder / "out-0-of-3"));  // local rank 0 has the terminal
  CHECK(launch(options) == 0);
  CHECK(read_bytes(folder / "out-1-of-3") == "said 1\nsaid 1\n");  // appended
}

TEST_CASE("a rank that fails ends the others, and what it said is shown", "[dist][launch]") {
  const TemporaryFolder folder;
  LaunchOptions options =
      shell(3, "if [ $RANK = 1 ]; then echo broken >&2; exit 7; fi; sleep 60", folder);
  Said said(folder / "said");
  const auto begin = std::chrono::steady_clock::now();
  const int status = launch(options);
  const std::string text = said.end();
  CHECK(status == 7);
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
  CHECK_THAT(text, ContainsSubstring("rank 0 (pid "));
  CHECK_THAT(text, ContainsSubstring("is told to end, since another rank failed"));
  CHECK_THAT(text, ContainsSubstring("ended with status 7"));
  CHECK_THAT(text, ContainsSubstring("begin of rank 1's stderr ----------\nbroken\n"));
  CHECK(text.find("of rank 2's") == std::string::npos);  // it did not fail by itself
}

TEST_CASE("what does not end is killed, with all that it has started", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string child = (folder / "child").string();
  LaunchOptions options = shell(2,
                                "if [ $RANK = 1 ]; then while [ ! -e " + child +
                                    " ]; do sleep 0.05; done; exit 3; fi; trap '' TERM; "
                                    "sleep 60 & echo $! > " +
                                    child + "; wait; sleep 60",
                                folder);
  options.cleanup_timeout = 300ms;
  Said said(folder / "said");
  const int status = launch(options);
  CHECK_THAT(said.end(), ContainsSubstring("is killed"));
  CHECK(status == 3);
  const int left = std::stoi(read_bytes(child));
  for (int i = 0; i < 200 && ::kill(left, 0) == 0; ++i) {
    std::this_thread::sleep_for(10ms);
    if (fs::exists("/proc/" + std::to_string(left) + "/stat") &&
        read_bytes("/proc/" + std::to_string(left) + "/stat").find(") Z") != std::string::npos) {
      break;  // dead, and nobody has asked for its status
    }
  }
  const bool alive =
      ::kill(left, 0) == 0 &&
      read_bytes("/proc/" + std::to_string(left) + "/stat").find(") Z") == std::string::npos;
  CHECK_FALSE(alive);
}

TEST_CASE("a signal goes on to all ranks, which may take their time", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  LaunchOptions options =
      shell(2,
            "trap 'sleep 1; echo saved > " + (folder / "saved").string() +
                "-$RANK; exit 143' TERM; touch " + ready + "-$RANK; while :; do sleep 0.1; done",
            folder);
  options.cleanup_timeout = 1ms;
  std::thread sender = signal_when(ready + "-1", SIGTERM);
  const int status = launch(options);
  sender.join();
  CHECK(status == 143);
  CHECK(fs::exists(folder / "saved-0"));
  CHECK(fs::exists(folder / "saved-1"));
}

TEST_CASE("a second signal kills", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  LaunchOptions options =
      shell(1, "trap '' INT; touch " + ready + "; while :; do sleep 0.1; done", folder);
  std::thread sender = signal_when(ready, SIGINT, 2);
  const int status = launch(options);
  sender.join();
  CHECK(status == 128 + SIGKILL);
}

TEST_CASE("arguments are filled in for each rank", "[dist][launch]") {
  const TemporaryFolder folder;
  LaunchOptions options = shell(2, "echo \"$1 $2 $3\"", folder);
  options.command.insert(options.command.end(), {"name", "r$RANK/${WORLD_SIZE}", "$NO_SUCH", "5$"});
  CHECK(launch(options) == 0);
  CHECK(read_bytes(folder / "out-1-of-2") == "r1/2 $NO_SUCH 5$\n");
}

TEST_CASE("options that do not fit are refused", "[dist][launch]") {
  const auto refused = [](LaunchOptions options) { options.complete(); };
  CHECK_THROWS_WITH(refused({}), ContainsSubstring("there is no program"));
  CHECK_THROWS_WITH(refused({.nproc = 0, .command = {"a"}}), ContainsSubstring("--nproc is 0"));
  CHECK_THROWS_WITH(refused({.nproc = 2, .world_size = 4, .command = {"a"}}),
                    ContainsSubstring("set --node_rank or --base_rank"));
  CHECK_THROWS_WITH(refused({.nproc = 2, .world_size = 4, .node_rank = 1, .command = {"a"}}),
                    ContainsSubstring("set --master_addr and --master_port"));
  CHECK_THROWS_WITH(refused({.nproc = 2, .world_size = 4, .node_rank = 2, .command = {"a"}}),
                    ContainsSubstring("ranks 4 to 5 do not fit"));
  CHECK_THROWS_WITH(launch({.nproc = 1, .command = {"no-such-program"}}),
                    ContainsSubstring("cannot start 'no-such-program': No such file"));
}

TEST_CASE("launched rank: adds up", "[.rank]") {
  const auto group = dist::initialize();
  CHECK(group->size() == 2);
  CHECK(group->all_reduce_value(group->rank() + 1) == 3);
}

TEST_CASE("ranks that are launched find each other", "[dist][launch]") {
  const TemporaryFolder folder;
  LaunchOptions options{.nproc = 2,
                        .stdout_file = (folder / "out-{rank}").string(),
                        .command = {"/proc/self/exe", "launched rank: adds up"}};
  CHECK(launch(options) == 0);
  CHECK_THAT(read_bytes(folder / "out-1"), ContainsSubstring("All tests passed"));
}
