#include <tutti/train/saving.hpp>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/dist/ddp.hpp>
#include <tutti/trainer.hpp>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using tutti_test::all_passed;
using tutti_test::run_ranks;
namespace fs = std::filesystem;

namespace {

struct SignalAt final {
  std::int64_t batch = 100;
  void apply(BatchStart, const State& state) const {
    if (state.rank == 1 && state.timestamp.batch == batch) {
      std::raise(SIGTERM);
    }
  }
};

// Takes the save folder away on rank 0, before a save.
struct Unplug final {
  std::string folder;
  void apply(BatchEnd, const State& state) const {
    if (state.rank == 0 && state.timestamp.batch == 4) {
      while (!fs::exists(folder + "/latest")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      fs::rename(folder, folder + "-away");
      write_bytes(folder, "no folder");
    }
  }
};

TrainerOptions options(const std::string& folder) {
  at::manual_seed(7);
  return {.train = TensorLoader{at::randn({24, 4}), at::randn({24, 2}), {.batch_size = 3}},
          .max_duration = "3ep",
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .run_name = "two",
          .progress_bar = false,
          .save_folder = folder,
          .save_interval = "2ba"};
}

}  // namespace

TEST_CASE("rank body: a signal for one rank", "[.rank]") {
  const TemporaryFolder mine;
  const auto group = dist::initialize();
  const std::string folder = group->broadcast_bytes(mine.path().string());
  TrainerOptions plain = options("");
  auto whole = tiny::net(1, 0.5);
  Trainer(whole, plain, SignalAt{}).fit();
  for (const std::int64_t at : {1, 3, 6}) {
    TrainerOptions stopping = options(folder + "/" + std::to_string(at));
    stopping.save_interval = "100ba";
    stopping.autoresume = true;
    stopping.replace_signal_handlers = true;
    stopping.save_async = at == 3;
    Trainer trainer(tiny::net(1, 0.5), stopping, SignalAt{.batch = at});
    trainer.fit();
    CHECK(trainer.stop_signal() == SIGTERM);
    CHECK(trainer.state().timestamp.batch == at + 1);
    auto model = tiny::net(5, 0.5);
    Trainer rest(model, stopping, SignalAt{});
    CHECK(rest.state().timestamp.batch == at + 1);
    rest.fit();
    CHECK(rest.stop_signal() == 0);
    CHECK(at::equal(tiny::flat(*whole), tiny::flat(*model)));
  }
  group->barrier();
}

TEST_CASE("rank body: a signal ends the processes", "[.rank]") {
  const TemporaryFolder mine;
  const auto group = dist::initialize();
  TrainerOptions stopping = options(group->broadcast_bytes(mine.path().string()) + "/saved");
  stopping.on_signal = OnSignal::exit;
  stopping.replace_signal_handlers = true;
  Trainer trainer(tiny::net(), stopping, SignalAt{.batch = 3});
  trainer.fit();
  FAIL("fit returned");
}

TEST_CASE("rank body: a failed write in the background", "[.rank]") {
  const TemporaryFolder mine;
  const auto group = dist::initialize();
  TrainerOptions failing = options(group->broadcast_bytes(mine.path().string()) + "/saved");
  failing.save_async = true;
  Trainer trainer(tiny::net(), failing, Unplug{failing.save_folder});
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("cannot create the folder"));
  CHECK(trainer.state().timestamp.batch < 12);
  group->barrier();
}

TEST_CASE("rank body: ranks that find different checkpoints", "[.rank]") {
  const TemporaryFolder mine;
  const auto group = dist::initialize();
  const std::string folder = group->broadcast_bytes(mine.path().string());
  TrainerOptions apart = options(folder + "/{rank}");
  apart.autoresume = true;
  Trainer(tiny::net(), apart, SignalAt{}).fit();  // rank 0 writes, into its own folder
  group->barrier();
  const auto again = [&] { Trainer trainer(tiny::net(), apart, SignalAt{}); };
  CHECK_THROWS_WITH(again(), ContainsSubstring("rank 1 found none; save_folder must be on a file "
                                               "system that all ranks share"));
  TrainerOptions damaged = options("");  // what only one rank cannot read is known to both
  damaged.load_path = group->rank() == 0 ? folder + "/0/latest" : folder + "/0/nothing";
  const auto load = [&] { Trainer trainer(tiny::net(), damaged, SignalAt{}); };
  CHECK_THROWS_WITH(load(), ContainsSubstring("there is no checkpoint"));
  group->barrier();
}

TEST_CASE("two ranks stop after the same batch when one gets a signal", "[dist][signals]") {
  CHECK(run_ranks("rank body: a signal for one rank") == all_passed);
}

TEST_CASE("a signal for one rank ends both processes", "[dist][signals]") {
  const std::string report = run_ranks("rank body: a signal ends the processes");
  CHECK_THAT(report, ContainsSubstring("signal 15 ended the run after batch 4"));
  CHECK_THAT(report, !ContainsSubstring("killed at the limit") &&
                         !ContainsSubstring("fit returned") && !ContainsSubstring("terminate"));
  CHECK_THAT(report, ContainsSubstring("--- rank 0 failed") &&
                         ContainsSubstring("--- rank 1 failed"));  // they exit with 143
}

TEST_CASE("a write that fails on rank 0 stops both ranks", "[dist][saving]") {
  CHECK(run_ranks("rank body: a failed write in the background") == all_passed);
}

TEST_CASE("ranks agree on what they resume from", "[dist][autoresume]") {
  CHECK(run_ranks("rank body: ranks that find different checkpoints") == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
