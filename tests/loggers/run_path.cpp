#include <tutti/loggers/run_path.hpp>

#include <chrono>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::run_path;
using tutti::State;
using Lines = std::vector<std::string>;

namespace {

// Rank 5 of six on three machines, the second of its own.
class Sixth final : public FakeCommunicator {
 public:
  Sixth()
      : FakeCommunicator([] {
          tutti::dist::Environment place;
          place.rank = 5;
          place.world_size = 6;
          place.local_rank = 1;
          place.local_world_size = 2;
          place.node_rank = 2;
          return place;
        }()) {}
};

struct Store {
  Lines lines;
  void upload_file(std::string_view remote_file_name, std::string_view path) {
    lines.push_back(std::string(path) + " as " + std::string(remote_file_name));
  }
};

constexpr std::string_view places =
    "{rank}/{world_size} {local_rank}/{local_world_size} {node_rank}";

}  // namespace

TEST_CASE("a path has the run's name, place and time in it", "[loggers][run_path]") {
  State state;
  state.run_name = "brisk-otter";
  state.timestamp.epoch = 1;
  state.timestamp.batch = 45;
  state.timestamp.total_wct = std::chrono::milliseconds(1500);
  CHECK(run_path("{run_name}/ep{epoch}-ba{batch}-{total_wct}.txt", state) ==
        "brisk-otter/ep1-ba45-1.5.txt");
  CHECK(run_path("no placeholder, {none} and {", state) == "no placeholder, {none} and {");
  CHECK(run_path("", state).empty());
  CHECK(run_path("{run_folder}/logs.txt", state) == "brisk-otter/logs.txt");
  state.run_folder = "/scratch/runs/{rank}";  // filled in already, and not again
  CHECK(run_path("{run_folder}/logs.txt", state) == "/scratch/runs/{rank}/logs.txt");
  state.timestamp.batch = 46;
  CHECK(run_path("{batch}", state) == "46");  // as it is now
}

TEST_CASE("a path has the place on its machine from the communicator", "[loggers][run_path]") {
  State state;
  CHECK(run_path(places, state) == "0/1 0/1 0");
  state.rank = 5;
  state.world_size = 6;
  CHECK(run_path(places, state) == "5/6 0/6 0");  // nothing is known of machines
  state.communicator = std::make_shared<Sixth>();
  CHECK(run_path(places, state) == "5/6 1/2 2");
}

TEST_CASE("several ranks may not write one file", "[loggers][run_path]") {
  const auto says = [](std::string_view pattern, const State& state) {
    return message([&] { tutti::detail::check_one_file_per_rank("A: file", pattern, state); });
  };
  State state;
  CHECK(says("one.txt", state) == "nothing");
  state.world_size = 4;
  CHECK(says("one.txt", state) == "A: file is \"one.txt\", but 4 ranks write; put {rank} into it");
  CHECK(says("{local_rank}.txt", state) != "nothing");  // one on each machine
  CHECK(says("{rank}.txt", state) == "nothing");
}

TEST_CASE("names in a store are checked and used where there is a store", "[loggers][run_path]") {
  State state;
  state.run_name = "brisk-otter";
  state.world_size = 2;
  const auto says = [&](std::string_view pattern) {
    return message([&] { tutti::detail::check_remote_file("A", pattern, state); });
  };
  CHECK(says("one.txt") == "nothing");
  tutti::detail::upload_file("{run_name}/one.txt", "/tmp/one", state);  // to nobody

  Store store;
  state.logger.add(store);
  CHECK(says("one.txt") ==
        "A: remote_file_name is \"one.txt\", but 2 ranks write; put {rank} into it");
  CHECK(says("{rank}.txt") == "nothing");
  CHECK(says("") == "nothing");  // it stays here
  tutti::detail::upload_file("{run_name}/{rank}.txt", "/tmp/{rank}", state);
  tutti::detail::upload_file("", "/tmp/two", state);
  CHECK(store.lines == Lines{"/tmp/{rank} as brisk-otter/0.txt"});
}

TEST_CASE("what closes knows whether an exception made it", "[loggers][run_path]") {
  struct Closing {
    bool& failed;
    ~Closing() { failed = tutti::detail::run_failed(); }
  };
  CHECK_FALSE(tutti::detail::run_failed());
  bool unwinding = false;
  try {
    const Closing closing{unwinding};
    throw std::runtime_error("crash");
  } catch (const std::runtime_error&) {
    CHECK(tutti::detail::run_failed());
  }
  CHECK(unwinding);
  CHECK_FALSE(tutti::detail::run_failed());
  {
    const Closing closing{unwinding};
  }
  CHECK_FALSE(unwinding);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
