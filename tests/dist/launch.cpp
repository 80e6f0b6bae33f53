#include <tutti/dist/launch.hpp>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <tutti/dist/process_group.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

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

// Whether a process ends within seconds; one that is dead and not yet waited for has ended.
bool is_gone(int process) {
  const std::string stat = "/proc/" + std::to_string(process) + "/stat";
  for (int i = 0; i < 500; ++i) {
    if (::kill(process, 0) != 0 || !fs::exists(stat) ||
        read_bytes(stat).find(") Z") != std::string::npos) {
      return true;
    }
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

// A process of its own that launches; it is killed with all that it has not ended at the end.
class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : pid_(::fork()) {
    if (pid_ == 0) {
      ::_exit(launch(options));
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() { kill(); }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  pid_t pid_;
};

// The process numbers that `count` ranks have written to files, once they are there.
std::vector<int> written(const fs::path& files, int count) {
  std::vector<int> found;
  for (int rank = 0; rank < count; ++rank) {
    const std::string file = files.string() + "-" + std::to_string(rank);
    for (int i = 0; i < 1000 && (!fs::exists(file) || !read_bytes(file).ends_with('\n')); ++i) {
      std::this_thread::sleep_for(10ms);
    }
    found.push_back(std::stoi(read_bytes(file)));
  }
  return found;
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
  CHECK(is_gone(std::stoi(read_bytes(child))));
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

TEST_CASE("a hangup goes on to all ranks as SIGTERM, by which they save", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  LaunchOptions options = shell(2,
                                "trap 'sleep 1; echo saved > " + (folder / "saved").string() +
                                    "-$RANK; exit 143' TERM; if [ $RANK = 1 ]; then until [ -e " +
                                    ready + "-0 ]; do sleep 0.05; done; fi; touch " + ready +
                                    "-$RANK; while :; do sleep 0.1; done",
                                folder);
  struct sigaction before{};
  struct sigaction harmless{};  // behind the end of launch()
  harmless.sa_handler = [](int) {};
  ::sigaction(SIGHUP, &harmless, &before);
  std::thread sender = signal_when(ready + "-1", SIGHUP, 2);  // of a shell and the kernel, perhaps
  const int status = launch(options);
  sender.join();
  ::sigaction(SIGHUP, &before, nullptr);
  CHECK(status == 143);
  CHECK(fs::exists(folder / "saved-0"));
  CHECK(fs::exists(folder / "saved-1"));
}

TEST_CASE("a hangup that is ignored, as under nohup, stays ignored", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  LaunchOptions options = shell(
      1, "touch " + ready + "; sleep 0.5; exit $((5 - 5 * TORCHELASTIC_RESTART_COUNT))", folder);
  options.max_restarts = 1;  // there is none for a launcher that was told to end
  options.restart_delay = 0ms;
  options.min_uptime = 0ms;
  Said said(folder / "said");
  struct sigaction before{};
  struct sigaction ignored{};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGHUP, &ignored, &before);
  std::thread sender = signal_when(ready, SIGHUP);
  const int status = launch(options);
  sender.join();
  ::sigaction(SIGHUP, &before, nullptr);
  CHECK(status == 0);
}

TEST_CASE("a rank that hangs after a signal is killed when another fails", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  LaunchOptions options = shell(2,
                                "if [ $RANK = 1 ]; then trap 'echo lost >&2; exit 5' TERM; else "
                                "trap '' TERM; fi; touch " +
                                    ready + "-$RANK; while :; do sleep 0.1; done",
                                folder);
  options.cleanup_timeout = 300ms;
  Said said(folder / "said");
  std::thread sender = signal_when(ready + "-1", SIGTERM);
  const int status = launch(options);
  sender.join();
  const std::string text = said.end();
  CHECK(status == 5);
  CHECK_THAT(text, ContainsSubstring("is killed unless it ends in time, since another rank failed "
                                     "after the signal"));
  CHECK_THAT(text, ContainsSubstring("ended with status 5"));
  CHECK_THAT(text, ContainsSubstring("begin of rank 1's stderr ----------\n") &&
                       ContainsSubstring("lost\n"));
}

TEST_CASE("a launcher that is killed leaves nothing behind", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string pid = (folder / "pid").string();
  // Behind a shell, deaf to SIGTERM, and in a session of its own.
  for (const std::string& script :
       {"true; sleep 60 & echo $! > " + pid + "-$RANK; wait; true",
        "trap '' TERM; sleep 60 & echo $! > " + pid + "-$RANK; wait; true",
        "setsid --wait sh -c 'echo $$ > " + pid + "-$RANK; sleep 60; true'; true"}) {
    CAPTURE(script);
    LaunchOptions options = shell(2, script, folder);
    options.cleanup_timeout = 200ms;
    Said said(folder / "said");
    Launcher launcher(options);
    const std::vector<int> started = written(pid, 2);
    launcher.kill();
    for (const int process : started) {
      CHECK(is_gone(process));
    }
    for (int rank = 0; rank < 2; ++rank) {
      fs::remove(pid + "-" + std::to_string(rank));
    }
  }
}

TEST_CASE("a run whose guard was killed ends with its own status, and says so", "[dist][launch]") {
  const TemporaryFolder folder;
  const LaunchOptions options = shell(
      1,
      "for s in /proc/[0-9]*/stat; do case \"$(cat $s 2>/dev/null)\" in "
      "*\"(tutti-guard) \"?\" $PPID \"*) p=${s#/proc/}; kill -9 ${p%/stat};; esac; done; exit 6",
      folder);
  Said said(folder / "said");
  const int status = launch(options);
  const std::string text = said.end();
  CHECK(status == 6);
  CHECK_THAT(text, ContainsSubstring("tutti-run: the guard of this run (pid "));
}

TEST_CASE("what a run leaves behind is its own affair when it ends well", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string pid = (folder / "pid").string();
  CHECK(launch(shell(1, "sleep 60 & echo $! > " + pid + "-$RANK", folder)) == 0);
  const int left = written(pid, 1)[0];
  CHECK(::kill(left, 0) == 0);
  ::kill(left, SIGKILL);
  CHECK(launch(shell(1, "sleep 60 & echo $! > " + pid + "-$RANK; exit 4", folder)) == 4);
  CHECK(is_gone(written(pid, 1)[0]));
}

TEST_CASE("a run that failed is started again, all of it, and told so", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string seen = (folder / "seen").string();
  LaunchOptions options = shell(
      2,
      "echo $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS >> " + seen +
          "-$RANK; echo $MASTER_PORT >> " + seen +
          "-port; if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then if [ $RANK = 1 ]; then until "
          "[ $(wc -l < " +
          seen +
          "-0) -gt $TORCHELASTIC_RESTART_COUNT ]; do sleep 0.01; done; exit 5; fi; sleep 60; "
          "fi",
      folder);
  options.stderr_file = (folder / "err-{rank}-{restart_count}").string();
  options.max_restarts = 3;
  options.restart_delay = 10ms;
  options.min_uptime = 0ms;
  Said said(folder / "said");
  const int status = launch(options);
  const std::string text = said.end();
  CHECK(status == 0);
  CHECK(read_bytes(seen + "-0") == "0 of 3\n1 of 3\n2 of 3\n");
  CHECK(read_bytes(seen + "-1") == read_bytes(seen + "-0"));
  CHECK(fs::exists(folder / "err-1-2"));
  std::istringstream ports(read_bytes(seen + "-port"));
  const std::set<std::string> different{std::istream_iterator<std::string>(ports), {}};
  CHECK(different.size() >= 2);  // each attempt has its own; the kernel may give one again
  CHECK_THAT(text, ContainsSubstring("attempt 1 of at most 4, ") &&
                       ContainsSubstring(" s: rank 1 of 2 on ") &&
                       ContainsSubstring(") ended with status 5\n") &&
                       ContainsSubstring("all ranks are started again in 0.0 s") &&
                       ContainsSubstring("attempt 3 of at most 4, ") &&
                       ContainsSubstring(" s: it ended well\n"));
}

TEST_CASE("the status of a run is that of its last attempt", "[dist][launch]") {
  const TemporaryFolder folder;
  LaunchOptions options = shell(1, "exit $((10 + TORCHELASTIC_RESTART_COUNT))", folder);
  options.max_restarts = 2;
  options.restart_delay = 0ms;
  Said said(folder / "said");
  options.min_uptime = 0ms;
  CHECK(launch(options) == 12);
  options.min_uptime = 60s;  // twice in a row is enough
  CHECK(launch(options) == 11);
  options.command.back() = "exit 64";
  CHECK(launch(options) == 64);
  const std::string text = said.end();
  CHECK_THAT(text, ContainsSubstring("not started again: no restart is left") &&
                       ContainsSubstring("not started again: it failed twice within 60.0 s") &&
                       ContainsSubstring("not started again: it would fail again: status 64"));
}

TEST_CASE("an attempt is up until its failure, however long the other ranks take to end",
          "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string deaf = (folder / "deaf").string();
  const std::string seen = (folder / "seen").string();
  // In the second attempt rank 0 ends later than min_uptime, and only when it is killed.
  LaunchOptions options = shell(2,
                                "if [ $RANK = 0 ]; then echo >> " + seen +
                                    "; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 5; trap '' TERM;"
                                    " touch " +
                                    deaf +
                                    "; sleep 60; fi; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep "
                                    "60; until [ -e " +
                                    deaf + " ]; do sleep 0.05; done; exit 5",
                                folder);
  options.max_restarts = 2;
  options.restart_delay = 0ms;
  options.min_uptime = 3s;
  options.cleanup_timeout = 3100ms;
  Said said(folder / "said");
  CHECK(launch(options) == 5);
  CHECK_THAT(said.end(), ContainsSubstring("not started again: it failed twice within 3.0 s"));
  CHECK(read_bytes(seen) == "\n\n");
}

TEST_CASE("what an attempt has left is gone before the next one starts", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string pid = (folder / "pid").string();
  LaunchOptions options = shell(1,
                                "if [ -e " + pid + " ]; then stat=/proc/$(cat " + pid +
                                    ")/stat; [ -e $stat ] && ! grep -q ') Z' $stat && exit 9; exit "
                                    "0; fi; setsid sleep 60 & echo $! > " +
                                    pid + "; exit 3",
                                folder);
  options.max_restarts = 1;
  options.restart_delay = 0ms;
  Said said(folder / "said");
  CHECK(launch(options) == 0);
}

TEST_CASE("a signal ends a run for good, also between two attempts", "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  LaunchOptions options = shell(1,
                                "echo >> " + ready +
                                    "; trap 'exit 3' TERM; while :; do sleep "
                                    "0.05; done",
                                folder);
  options.max_restarts = 5;
  Said said(folder / "said");
  std::thread sender = signal_when(ready, SIGTERM);
  CHECK(launch(options) == 3);
  sender.join();
  CHECK(read_bytes(ready) == "\n");  // started once
  fs::remove(ready);
  options.command.back() = "echo >> " + ready + "; exit 6";
  options.restart_delay = 60s;
  sender = signal_when(ready, SIGINT);
  CHECK(launch(options) == 6);
  sender.join();
  CHECK(read_bytes(ready) == "\n");
}

TEST_CASE("restarts are further and further apart", "[dist][launch]") {
  dist::detail::Restarts restarts(7, 1s, 5s);
  for (const auto pause : {1s, 2s, 4s, 8s, 16s, 30s, 30s}) {
    CHECK(restarts.after(1, 10s) == pause);
  }
  CHECK_FALSE(restarts.after(1, 10s));
  CHECK(restarts.count() == 7);
  dist::detail::Restarts quick(9, 1s, 5s);
  CHECK(quick.after(137, 1s));
  CHECK(quick.after(137, 6s));  // it ran for a while
  CHECK(quick.after(137, 1s));
  CHECK_FALSE(quick.after(137, 1s));
  CHECK(quick.why_not() == "it failed twice within 5.0 s of its start");
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

TEST_CASE("a free port is another each time, and none that the kernel gives out",
          "[dist][launch]") {
  using dist::detail::bound_port;
  const int given_out = bound_port(0);
  std::set<int> ports;
  for (int i = 0; i < 20; ++i) {
    ports.insert(dist::detail::free_port());
  }
  CHECK(ports.size() == 20);
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  int lowest = 0;
  REQUIRE(range >> lowest);
  CHECK(given_out >= lowest);
  if (lowest <= 10'000) {
    return tutti_test::skip("the kernel gives out ports from " + std::to_string(lowest) + " on");
  }
  CHECK(*ports.begin() >= 10'000);
  CHECK(*ports.rbegin() < std::min(lowest, 29'000));
  CHECK(bound_port(*ports.begin()) == *ports.begin());
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(*ports.begin()));
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  CHECK(bound_port(*ports.begin()) == 0);
  ::close(socket);
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
  CHECK_THROWS_WITH(refused({.nproc = 1,
                             .world_size = 2,
                             .node_rank = 0,
                             .master_addr = "a",
                             .master_port = 9,
                             .max_restarts = 1,
                             .command = {"a"}}),
                    ContainsSubstring("--max_restarts with several machines needs --rdzv"));
  CHECK_THROWS_WITH(refused({.nproc = 1, .max_restarts = -1, .command = {"a"}}),
                    ContainsSubstring("--max_restarts is -1, expected 0 or more"));
  CHECK_THROWS_WITH(
      refused({.nproc = 1, .monitor_interval = std::chrono::milliseconds(0), .command = {"a"}}),
      ContainsSubstring("--monitor_interval is 0 ms, expected more than 0"));
  CHECK_THROWS_WITH(launch({.nproc = 1, .command = {"no-such-program"}}),
                    ContainsSubstring("cannot start 'no-such-program': No such file"));
}

TEST_CASE("launched rank: adds up", "[.rank]") {
  const auto group = dist::initialize();
  CHECK(group->size() == 2);
  CHECK(group->all_reduce_value(group->rank() + 1) == 3);
}

TEST_CASE("launched rank: waits for one that is gone", "[.rank]") {
  dist::initialize(at::kCPU, 3s);
}

TEST_CASE(
    "a rank that ends with status 0 before it joins the others is named, at once and at the end",
    "[dist][launch]") {
  const TemporaryFolder folder;
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  const LaunchOptions options =
      shell(2, "[ $RANK = 1 ] || exec '" + self + "' 'launched rank: waits for one that is gone'",
            folder);
  Said said(folder / "said");
  const int status = launch(options);
  const std::string text = said.end();
  CHECK(status != 0);
  const std::string named = "ended with status 0 while the others went on";
  CHECK_THAT(text, ContainsSubstring(named + "; they wait for it\n"));
  CHECK_THAT(text, ContainsSubstring("tutti-run: rank 1 of 2 on ") &&
                       ContainsSubstring(named + ", ") &&
                       ContainsSubstring(" s before the others failed\n"));
  CHECK(text.find("they wait for it") < text.find("before the others failed"));
}

TEST_CASE("ranks that end with status 0 one after the other are nothing to speak of",
          "[dist][launch]") {
  const TemporaryFolder folder;
  const LaunchOptions options = shell(2, "[ $RANK = 1 ] || sleep 1.5", folder);
  Said said(folder / "said");
  CHECK(launch(options) == 0);
  CHECK(said.end().empty());
}

TEST_CASE("ranks that are launched find each other", "[dist][launch]") {
  const TemporaryFolder folder;
  LaunchOptions options{.nproc = 2,
                        .stdout_file = (folder / "out-{rank}").string(),
                        .command = {"/proc/self/exe", "launched rank: adds up"}};
  CHECK(launch(options) == 0);
  CHECK_THAT(read_bytes(folder / "out-1"), ContainsSubstring("All tests passed"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
