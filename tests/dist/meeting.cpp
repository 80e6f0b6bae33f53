#include <tutti/dist/detail/meeting.hpp>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <tutti/dist/launch.hpp>
#include <tutti/dist/process_group.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using dist::LaunchOptions;
namespace fs = std::filesystem;

namespace {

// A launcher of its own, as one machine has it; netns: the network namespace that it lives in.
class Node {
 public:
  Node(const LaunchOptions& options, fs::path said, const std::string& netns = "")
      : said_(std::move(said)) {
    std::ofstream(said_) << "";
    pid_ = ::fork();
    if (pid_ == 0) {
      const int out = ::open(said_.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      ::setpgid(0, 0);
      if (!netns.empty()) {
        const int space = ::open(("/var/run/netns/" + netns).c_str(), O_RDONLY | O_CLOEXEC);
        if (::setns(space, CLONE_NEWNET) != 0) {
          ::_exit(99);
        }
      }
      try {
        ::_exit(dist::launch(options));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(98);
      }
    }
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    if (pid_ > 0) {
      end(SIGKILL);
    }
  }
  void signal(int number) const { ::kill(pid_, number); }
  int end(int number) {
    signal(number);
    return wait();
  }
  // Its exit status; 128 + signal; -1: it still runs after a minute.
  int wait() {
    int status = 0;
    for (int i = 0; i < 6000; ++i) {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      }
      std::this_thread::sleep_for(10ms);
    }
    return -1;
  }
  [[nodiscard]] std::string said() const { return read_bytes(said_); }

 private:
  fs::path said_;
  pid_t pid_ = -1;
};

struct Machines {
  Machines() {
    std::ofstream(folder / "token") << std::string(40, 't');
    ::chmod((folder / "token").c_str(), 0600);
  }
  LaunchOptions options(const std::string& script, int least = 2, int most = 2) const {
    return {.nproc = 2,
            .cleanup_timeout = 2s,
            .max_restarts = 3,
            .restart_delay = 50ms,
            .min_uptime = 0ms,
            .token_file = (folder / "token").string(),
            .rdzv = "127.0.0.1:" + std::to_string(port),
            .least_nodes = least,
            .most_nodes = most,
            .last_call = 300ms,
            .node_timeout = 5s,
            .join_timeout = 20s,
            .command = {"sh", "-c", script}};
  }
  std::unique_ptr<Node> node(const std::string& name, const LaunchOptions& options) const {
    return std::make_unique<Node>(options, folder / name);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder / name).string(); }
  bool appears(const std::string& name) const {
    for (int i = 0; i < 2000 && !fs::exists(folder / name); ++i) {
      std::this_thread::sleep_for(10ms);
    }
    return fs::exists(folder / name);
  }

  TemporaryFolder folder;
  int port = tutti_test::free_port();
};

const std::string place =
    "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $GROUP_RANK "
    "of $GROUP_WORLD_SIZE, try $TORCHELASTIC_RESTART_COUNT";

}  // namespace

TEST_CASE("launchers agree on ranks, on a failure and on the next attempt", "[dist][meeting]") {
  const Machines machines;
  const std::string script = "echo " + place + " > " + machines.path("rank") +
                             "$TORCHELASTIC_RESTART_COUNT-$RANK; echo $MASTER_PORT >> " +
                             machines.path("port") +
                             "$TORCHELASTIC_RESTART_COUNT; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; "
                             "then if [ $RANK = 3 ]; then exit 5; fi; sleep 60; fi";
  const auto one = machines.node("one", machines.options(script));
  const auto two = machines.node("two", machines.options(script));
  CHECK(one->wait() == 0);
  CHECK(two->wait() == 0);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string number = std::to_string(rank);
    CHECK(read_bytes(machines.path("rank1-" + number)) ==
          number + " of 4, " + std::to_string(rank % 2) + " of 2, node " +
              std::to_string(rank / 2) + " of 2, try 1\n");
  }
  std::ifstream ports(machines.path("port1"));
  std::string first;
  std::string other;
  ports >> first;
  for (int i = 0; i < 3 && ports >> other; ++i) {
    CHECK(other == first);
  }
  for (const Node* node : {one.get(), two.get()}) {
    CHECK_THAT(node->said(), ContainsSubstring("attempt 1 of at most 4, ") &&
                                 ContainsSubstring(": rank 3 of 4 on ") &&
                                 ContainsSubstring("ended with status 5\n") &&
                                 ContainsSubstring("attempt 2 of at most 4, ") &&
                                 ContainsSubstring(": it ended well\n"));
  }
}

TEST_CASE("the run goes on without a machine whose launcher is killed", "[dist][meeting]") {
  const Machines machines;
  const std::string script = "touch " + machines.path("try") +
                             "$TORCHELASTIC_RESTART_COUNT-of-$WORLD_SIZE-$RANK; if [ $WORLD_SIZE "
                             "= 4 ]; then sleep 60; fi";
  const auto stays = machines.node("stays", machines.options(script, 1, 2));
  const auto goes = machines.node("goes", machines.options(script, 1, 2));
  REQUIRE(machines.appears("try0-of-4-3"));
  REQUIRE(machines.appears("try0-of-4-0"));
  CHECK(goes->end(SIGKILL) == 128 + SIGKILL);
  const int status = stays->wait();
  if (status == 0) {
    CHECK_THAT(stays->said(), ContainsSubstring("is gone: its launcher's connection is closed"));
    CHECK(fs::exists(machines.path("try1-of-2-1")));
  } else {  // the one that is killed may have come first, and the others met at it
    CHECK(status == 1);
    CHECK_THAT(stays->said(), ContainsSubstring("the machine at which the launchers meet is gone"));
  }
}

TEST_CASE("a machine that joins twice does not end the attempt that has begun", "[dist][meeting]") {
  using dist::detail::MeetingSays;
  const std::string token(64, 't');
  const int port = tutti_test::free_port();
  const dist::detail::MeetingOptions rules{.least = 2,
                                           .most = 2,
                                           .join_timeout = 20s,
                                           .last_call = 0ms,
                                           .silence = 20s,
                                           .max_restarts = 3,
                                           .restart_delay = 0ms,
                                           .min_uptime = 0ms};
  dist::detail::MeetingProcess served("127.0.0.1", port, token, rules);
  REQUIRE(served.running());
  dist::detail::MeetingClient well("127.0.0.1", port, token, rules);
  dist::detail::MeetingClient fails("127.0.0.1", port, token, rules);
  const dist::detail::Machine first{.host = "first"};
  const dist::detail::Machine second{.host = "second"};
  well.join(first);
  fails.join(second);
  REQUIRE(well.order(10s).what == MeetingSays::start);
  REQUIRE(fails.order(10s).what == MeetingSays::start);

  // The ranks of the first have ended well when the second's fail, so that it is there at once.
  well.ended(0);
  fails.failed(1, "rank 1 has failed");
  fails.ended(1);
  fails.join(second);
  REQUIRE(well.order(10s).what == MeetingSays::stop);
  well.join(first);
  const auto again = well.order(10s);
  REQUIRE(again.what == MeetingSays::start);
  CHECK(again.place.restart_count == 1);
  // It has the stop of its own failure still to read, and may answer it.
  fails.join(second);
  CHECK(well.order(500ms).what == MeetingSays::beat);
  CHECK(fails.order(10s).what == MeetingSays::stop);
  CHECK(fails.order(10s).what == MeetingSays::start);
  well.ended(0);
  fails.ended(0);
  for (dist::detail::MeetingClient* one : {&well, &fails}) {
    const auto over = one->order(10s);
    CHECK(over.what == MeetingSays::over);
    CHECK(over.number == 0);
  }
}

TEST_CASE("a machine that comes later takes part in an attempt of its own", "[dist][meeting]") {
  const Machines machines;
  const std::string script = "touch " + machines.path("try") +
                             "$TORCHELASTIC_RESTART_COUNT-of-$WORLD_SIZE-$RANK; if [ $WORLD_SIZE "
                             "= 2 ]; then sleep 60; fi";
  const auto first = machines.node("first", machines.options(script, 1, 2));
  REQUIRE(machines.appears("try0-of-2-1"));
  const auto later = machines.node("later", machines.options(script, 1, 2));
  CHECK(first->wait() == 0);
  CHECK(later->wait() == 0);
  CHECK(fs::exists(machines.path("try1-of-4-3")));  // an attempt of its own number
  CHECK_FALSE(fs::exists(machines.path("try0-of-4-3")));
  CHECK_THAT(first->said(), ContainsSubstring(" joins the run") &&
                                ContainsSubstring("attempt 1 of at most 4, ") &&
                                ContainsSubstring("attempt 2 of at most 5, "));  // no restart used
}

TEST_CASE("a join is a new attempt and leaves all restarts", "[dist][meeting]") {
  using dist::detail::MeetingSays;
  const std::string token(64, 't');
  const int port = tutti_test::free_port();
  const dist::detail::MeetingOptions rules{.least = 1,
                                           .most = 2,
                                           .join_timeout = 20s,
                                           .last_call = 0ms,
                                           .silence = 20s,
                                           .max_restarts = 1,
                                           .restart_delay = 0ms,
                                           .min_uptime = 0ms};
  dist::detail::MeetingProcess served("127.0.0.1", port, token, rules);
  REQUIRE(served.running());
  dist::detail::MeetingClient one("127.0.0.1", port, token, rules);
  dist::detail::MeetingClient two("127.0.0.1", port, token, rules);
  const dist::detail::Machine first{.host = "first"};
  one.join(first);
  auto order = one.order(10s);
  REQUIRE(order.what == MeetingSays::start);
  CHECK(order.place.restart_count == 0);
  two.join({.host = "second"});
  REQUIRE(one.order(10s).what == MeetingSays::stop);
  one.join(first);  // its ranks have ended
  order = one.order(10s);
  REQUIRE(order.what == MeetingSays::start);
  CHECK(order.place.restart_count == 1);
  CHECK(order.place.joins == 1);
  REQUIRE(two.order(10s).what == MeetingSays::start);
  one.failed(1, "rank 0 has failed");  // the only restart is still there
  REQUIRE(one.order(10s).what == MeetingSays::stop);
  REQUIRE(two.order(10s).what == MeetingSays::stop);
  two.join({.host = "second"});
  one.join(first);
  for (dist::detail::MeetingClient* each : {&one, &two}) {
    order = each->order(10s);
    REQUIRE(order.what == MeetingSays::start);
    CHECK(order.place.restart_count == 2);
    CHECK(order.place.joins == 1);
    CHECK(order.place.nodes == 2);
  }
  one.ended(0);
  two.ended(0);
  for (dist::detail::MeetingClient* each : {&one, &two}) {
    CHECK(each->order(10s).what == MeetingSays::over);
  }
}

TEST_CASE("a signal to one launcher ends the run on all machines", "[dist][meeting]") {
  const Machines machines;
  const std::string script =
      "trap 'exit 143' TERM; touch " + machines.path("up") + "$RANK; while :; do sleep 0.05; done";
  const auto one = machines.node("one", machines.options(script));
  const auto two = machines.node("two", machines.options(script));
  for (int rank = 0; rank < 4; ++rank) {
    REQUIRE(machines.appears("up" + std::to_string(rank)));
  }
  std::this_thread::sleep_for(100ms);
  two->signal(SIGTERM);
  CHECK(one->wait() == 143);
  CHECK(two->wait() == 143);
}

TEST_CASE("a launcher without the token, or alone for too long, says so", "[dist][meeting]") {
  const Machines machines;
  LaunchOptions alone = machines.options("true");
  alone.join_timeout = 1500ms;
  const auto one = machines.node("one", alone);
  std::ofstream(machines.path("other")) << std::string(40, 'o');
  ::chmod(machines.path("other").c_str(), 0600);
  LaunchOptions stranger = machines.options("true");
  stranger.token_file = machines.path("other");
  std::this_thread::sleep_for(200ms);
  const auto two = machines.node("two", stranger);
  CHECK(two->wait() == 98);
  CHECK_THAT(two->said(), ContainsSubstring("refuses this process; it has not the token"));
  CHECK(one->wait() == 1);
  CHECK_THAT(one->said(),
             ContainsSubstring("the run is over: 1 of at least 2 machines are there after 1.5 s") &&
                 ContainsSubstring("a connection from 127.0.0.1 is refused, number 1: it does not "
                                   "know the token"));
  LaunchOptions open = machines.options("true");
  open.token_file.clear();
  CHECK_THROWS_WITH(open.complete(), ContainsSubstring("--rdzv needs --token_file"));
  LaunchOptions upside_down = machines.options("true", 3, 2);
  CHECK_THROWS_WITH(upside_down.complete(), ContainsSubstring("--nnodes is 3:2, expected"));
}

TEST_CASE("meeting rank: adds up, and is cut off", "[.rank]") {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = dist::initialize(at::kCPU, 60s);
  CHECK(group->all_reduce_value(1) == group->size());
  std::ofstream(folder + "/up" + std::to_string(group->size()) + "-" +
                std::to_string(group->rank()))
      << "up\n";
  if (group->size() == 4) {
    for (int i = 0; i < 6000; ++i) {  // until a machine is gone
      group->all_reduce_value(1);
      std::this_thread::sleep_for(10ms);
    }
  }
}

namespace {

// Two network namespaces with a cable between them, where this process may make them.
class Cable {
 public:
  Cable() {
    const std::string make = "ip netns add " + a + " && ip netns add " + b + " && ip -n " + a +
                             " link add " + a + " type veth peer name " + b + " netns " + b +
                             " && ip -n " + a + " addr add 10.213.7.1/24 dev " + a + " && ip -n " +
                             b + " addr add 10.213.7.2/24 dev " + b;
    made = run(make);
    for (const std::string& one : {a, b}) {
      made = made &&
             run("ip -n " + one + " link set " + one + " up && ip -n " + one + " link set lo up");
    }
  }
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;
  ~Cable() {
    run("ip netns del " + a);
    run("ip netns del " + b);
  }
  void pull() const { run("ip -n " + b + " link set " + b + " down"); }

  std::string a = "tutti-a" + std::to_string(::getpid());
  std::string b = "tutti-b" + std::to_string(::getpid());
  bool made = false;

 private:
  static bool run(const std::string& command) {
    return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
  }
};

}  // namespace

TEST_CASE("two machines train, and one goes on when the cable is pulled",
          "[dist][meeting][netns]") {
  const Cable cable;
  if (!cable.made) {
    return tutti_test::skip("this process may not make network namespaces");
  }
  const Machines machines;
  ::setenv("TUTTI_TEST_FOLDER", machines.path("").c_str(), 1);
  LaunchOptions options = machines.options("", 1, 2);
  options.rdzv = "10.213.7.1:" + std::to_string(machines.port);
  options.last_call = 5s;
  options.node_timeout = 2s;
  options.stdout_file = machines.path("out");
  options.stderr_file = machines.path("err");
  options.command = {"/proc/self/exe", "meeting rank: adds up*"};
  Node one(options, machines.folder / "one", cable.a);
  Node two(options, machines.folder / "two", cable.b);
  const auto report = [&] { return one.said() + "\n--- two\n" + two.said(); };
  for (int rank = 0; rank < 4; ++rank) {
    INFO(report());
    REQUIRE(machines.appears("up4-" + std::to_string(rank)));
  }
  cable.pull();
  const int status = one.wait();
  INFO(report());
  CHECK(status == 0);
  CHECK_THAT(one.said(), ContainsSubstring("is gone: it has said nothing for "));
  CHECK(machines.appears("up2-1"));
  CHECK(two.wait() == 1);
  CHECK_THAT(two.said(), ContainsSubstring("the machine at which the launchers meet is gone"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
