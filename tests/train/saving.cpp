#include <tutti/train/saving.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"
#include "support/tiny.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

TrainerOptions options(const TemporaryFolder& folder, Time length = "6ba") {
  return {.train = tiny::batches(3),
          .max_duration = length,
          .optimizer = SGD{.lr = 0.1, .momentum = 0.9},
          .device = "cpu",
          .seed = 3,
          .run_name = "calm-motet",
          .progress_bar = false,
          .save_folder = (folder / "saved").string(),
          .save_interval = "2ba"};
}

// Takes the save folder away before the save of a batch, and gives it back after that of another.
struct Unplug final {
  std::string folder;
  std::int64_t from = 0;
  std::int64_t until = 100;

  struct Run {
    std::ptrdiff_t threads = 0;  // before a save had one of its own
  } run{};

  static std::ptrdiff_t running() {
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  }

  void apply(FitStart, const State&) { run.threads = running(); }
  void apply(BatchEnd, const State& state) const {
    if (state.timestamp.batch == from) {
      // What is being written is to be written, to its last fsync.
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!fs::exists(folder + "/latest") ||
             (running() > run.threads && std::chrono::steady_clock::now() < limit)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      fs::rename(folder, folder + "-away");
      write_bytes(folder, "no folder");
    }
    if (state.timestamp.batch == until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the last one is to fail
      fs::remove(folder);
      fs::rename(folder + "-away", folder);
    }
  }
};

struct SignalAt final {
  std::int64_t batch = 0;
  int signal = SIGTERM;
  int closed = 0;
  int fit_ends = 0;

  void apply(BeforeForward, const State& state) const {
    if (state.timestamp.batch == batch) {
      std::raise(signal);
    }
  }
  void apply(FitEnd, const State&) { ++fit_ends; }
  void close(const State&) { ++closed; }
};

// The manifest without the moment in which it was made, by which saver, and the checksum that
// covers it.
std::string timeless(std::string manifest) {
  for (const char* name : {"\"created\"", "\"saver_id\""}) {
    const auto at = manifest.find(name);
    manifest.erase(at, manifest.find('\n', at) - at);
  }
  return manifest.substr(0, manifest.rfind("\"xxh64\""));
}

// Notes of every evaluation its set, the batch, and the weights that it measured.
struct Evaluations final {
  Names* seen = nullptr;

  void apply(EvalEnd, const State& state) const {
    seen->push_back(c10::str(state.dataloader_label, " at ", state.timestamp.batch, ": ",
                             tiny::flat(*state.model).sum().item<float>()));
  }
};

struct sigaction handler_of(int signal) {
  struct sigaction now{};
  ::sigaction(signal, nullptr, &now);
  return now;
}

}  // namespace

TEST_CASE("a checkpoint written in the background has the same bytes", "[train][saving]") {
  const TemporaryFolder folder;
  TrainerOptions now = options(folder);
  TrainerOptions later = options(folder);
  later.save_folder = (folder / "later").string();
  later.save_async = true;
  auto a = tiny::net(1, 0.5);
  auto b = tiny::net(1, 0.5);
  Trainer<>(a, now).fit();
  Trainer<>(b, later).fit();
  CHECK(at::equal(tiny::flat(*a), tiny::flat(*b)));
  CHECK(sorted_names(folder / "later") == Names{"ep0-ba2", "ep1-ba4", "ep1-ba6", "latest"});
  for (const char* name : {"ep0-ba2", "ep1-ba4", "ep1-ba6"}) {
    const fs::path one = folder / "saved" / name;
    const fs::path other = folder / "later" / name;
    CHECK(sorted_names(one) == sorted_names(other));
    CHECK(read_bytes(one / "model.safetensors") == read_bytes(other / "model.safetensors"));
    // The state lists the paths of the folder and clocks; its tensors are the same.
    CHECK(read_bytes(one / "state.safetensors") == read_bytes(other / "state.safetensors"));
  }
}

TEST_CASE("a manifest written in the background is that of the same snapshot", "[train][saving]") {
  const TemporaryFolder folder;
  dist::SingleProcess alone;
  State state;
  state.timestamp.batch = 2;
  checkpoint::Snapshot snapshot;
  snapshot.model.put("weight", at::randn({3, 4}).t());
  snapshot.state.put("momentum", at::randn({1000}));
  snapshot.state.put("lr", 0.1);
  for (const bool background : {false, true}) {
    checkpoint::Saver saver({.folder = (folder / (background ? "b" : "a")).string()}, state);
    train::Saving saving;
    saving.configure(background, OnSaveError::stop);
    saver.begin(state);
    saving.write(alone, saver, checkpoint::to_files(snapshot));
    snapshot.state.tensor("momentum").add_(background ? 1 : 0);  // training goes on
    saving.wait(alone);
  }
  CHECK(timeless(read_bytes(folder / "a/ep0-ba2/manifest.json")) ==
        timeless(read_bytes(folder / "b/ep0-ba2/manifest.json")));
  CHECK(read_bytes(folder / "a/ep0-ba2/state.safetensors") ==
        read_bytes(folder / "b/ep0-ba2/state.safetensors"));
  CHECK(read_bytes(folder / "a/ep0-ba2/model.safetensors") ==
        read_bytes(folder / "b/ep0-ba2/model.safetensors"));
}

namespace {

// Counts the collectives of a rank.
struct Counting final : FakeCommunicator {
  using FakeCommunicator::all_reduce;
  Counting(dist::Communicator& world, std::atomic<int>& calls)
      : FakeCommunicator(world.rank(), world.size()), world_(world), calls_(calls) {}
  void all_reduce(std::span<std::int64_t> values, dist::ReduceOp op) override {
    ++calls_;
    world_.all_reduce(values, op);
  }
  std::string broadcast_bytes(const std::string& bytes, int source) override {
    ++calls_;
    return world_.broadcast_bytes(bytes, source);
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    ++calls_;
    return world_.all_gather_bytes(bytes);
  }

 private:
  dist::Communicator& world_;
  std::atomic<int>& calls_;
};

// A disk that is done when another rank has ended so many collectives.
struct Slow final : checkpoint::Mirror {
  explicit Slow(std::atomic<int>& their_calls) : calls(their_calls) {}
  void written(const std::string&, const std::string&) noexcept override {
    for (int i = 0; i < 1000 && calls < 5; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    in_time = calls >= 5;
  }
  bool failed() const noexcept override { return false; }
  void check() override {}
  bool wait(std::chrono::milliseconds) override { return true; }
  bool fetch_latest(const std::string&, const std::string&) override { return false; }
  bool fetch(const std::string&, const std::string&) override { return false; }
  std::atomic<int>& calls;
  bool in_time = false;
};

}  // namespace

TEST_CASE("ranks wait for a save in many short collectives, which have a time limit each",
          "[train][saving]") {
  for (const bool background : {false, true}) {
    INFO("in the background: " << background);
    const TemporaryFolder folder;
    std::atomic<int> calls[2] = {0, 0};
    Slow slow(calls[1]);
    CHECK(ThreadRanks::run(2, [&](dist::Communicator& threads) {
            Counting world(threads, calls[threads.rank()]);
            State state;
            state.timestamp.batch = 2;
            checkpoint::Snapshot snapshot;
            snapshot.model.put("weight", at::ones({3}));
            checkpoint::Saver saver({.folder = folder.path().string()}, state);
            train::Saving saving;
            saving.configure(background, OnSaveError::stop);
            saving.set_mirrors({&slow});
            saver.begin(state);
            saving.write(world, saver, checkpoint::to_files(snapshot));
            saving.wait(world);
          }) == Names(2, "nothing"));
    CHECK(slow.in_time);
    CHECK_NOTHROW(checkpoint::read_snapshot(folder / "latest"));
  }
}

TEST_CASE("a checkpoint that cannot be written stops the run and older ones stay",
          "[train][saving]") {
  for (const bool background : {false, true}) {
    INFO("in the background: " << background);
    const TemporaryFolder folder;
    TrainerOptions failing = options(folder, "40ba");
    failing.save_async = background;
    failing.save_num_checkpoints_to_keep = 1;
    Warnings warnings;
    Trainer trainer(tiny::net(), failing, Unplug{.folder = failing.save_folder, .from = 4});
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("cannot create the folder"));
    CHECK(trainer.state().timestamp.batch < 40);  // at the next event, not at the end
    CHECK(sorted_names(failing.save_folder + "-away") == Names{"ep0-ba2", "latest"});
    CHECK_NOTHROW(checkpoint::read_snapshot(failing.save_folder + "-away/latest"));
  }
}

TEST_CASE("a folder that cannot be made stops the run before it trains", "[train][saving]") {
  const TemporaryFolder folder;
  std::ofstream(folder / "taken") << "x";
  TrainerOptions failing = options(folder, "8ba");
  failing.save_folder = (folder / "taken").string();
  Trainer<> trainer(tiny::net(), failing);
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("a file has that name"));
  CHECK(trainer.state().timestamp.batch == 0);
}

TEST_CASE("training goes on without a checkpoint when that is asked for", "[train][saving]") {
  for (const bool background : {false, true}) {
    INFO("in the background: " << background);
    const TemporaryFolder folder;
    TrainerOptions failing = options(folder, "8ba");
    failing.save_async = background;
    failing.save_on_error = OnSaveError::warn;
    failing.save_num_checkpoints_to_keep = 2;
    Warnings warnings;
    Trainer trainer(tiny::net(), failing,
                    Unplug{.folder = failing.save_folder, .from = 4, .until = 7});
    trainer.fit();
    CHECK(sorted_names(failing.save_folder) == Names{"ep0-ba2", "ep2-ba8", "latest"});
    CHECK(warnings.texts.size() == 2);
    for (const std::string& text : warnings.texts) {
      CHECK_THAT(text, ContainsSubstring("could not be written, training goes on") &&
                           ContainsSubstring("cannot create the folder"));
    }
  }
}

TEST_CASE("a run whose last checkpoint could not be written says what the newest one is",
          "[train][saving]") {
  for (const bool background : {false, true}) {
    INFO("in the background: " << background);
    const TemporaryFolder folder;
    TrainerOptions failing = options(folder, "6ba");
    failing.save_async = background;
    failing.save_on_error = OnSaveError::warn;
    Warnings warnings;
    Trainer trainer(tiny::net(), failing, Unplug{.folder = failing.save_folder, .from = 4});
    CHECK(trainer.last_checkpoint().empty());
    trainer.fit();
    REQUIRE(warnings.texts.size() > 2);  // of each attempt, then of the whole
    CHECK_THAT(warnings.texts.back(),
               ContainsSubstring("the last checkpoint in '" + failing.save_folder +
                                 "' could not be written; the run has ended after batch 6, and the "
                                 "newest one there, '" +
                                 failing.save_folder + "/ep0-ba2', is older"));
    CHECK(trainer.last_checkpoint() == failing.save_folder + "/ep0-ba2");
  }
}

TEST_CASE("a folder is saved into by one trainer at a time", "[train][saving]") {
  const TemporaryFolder folder;
  const TrainerOptions saving = options(folder);
  Trainer<> first(tiny::net(), saving);
  first.fit();
  CHECK(first.last_checkpoint() == saving.save_folder + "/ep1-ba6");
  CHECK(sorted_names(saving.save_folder) == Names{"ep0-ba2", "ep1-ba4", "ep1-ba6", "latest"});
  TrainerOptions on = options(folder, "8ba");
  on.autoresume = true;
  Trainer<> second(tiny::net(), on);  // the first one is alive, but has ended its fit
  CHECK(second.last_checkpoint() == saving.save_folder + "/ep1-ba6");
  const auto refused = ContainsSubstring("another trainer of this process saves into the folder '" +
                                         saving.save_folder + "'");
  CHECK_THROWS_WITH(Trainer<>(tiny::net(), on), refused);
  TrainerOptions reading = options(folder);
  reading.load_path = saving.save_folder + "/latest";
  reading.save_folder = "";
  CHECK_NOTHROW(Trainer<>(tiny::net(), reading));
  second.fit();
  CHECK_NOTHROW(Trainer<>(tiny::net(), on));
  second.fit("2ba");
  CHECK(sorted_names(saving.save_folder).size() == 6);

  Trainer<> idle(tiny::net(), on);
  idle.close();
  Trainer<> complete(tiny::net(), on);
  Warnings warnings;  // there is nothing left to train
  complete.fit();
  CHECK(warnings.texts.size() == 1);
  CHECK_NOTHROW(Trainer<>(tiny::net(), on));
}

TEST_CASE("a trainer that an exception has closed leaves its folder to others", "[train][saving]") {
  struct Fail final {
    void apply(BatchStart, const State&) const { TORCH_CHECK(false, "user code"); }
  };
  const TemporaryFolder folder;
  Trainer trainer(tiny::net(), options(folder), Fail{});
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("user code"));
  CHECK_NOTHROW(Trainer<>(tiny::net(), options(folder)).fit());
}

TEST_CASE("an exception in user code keeps the last complete checkpoint", "[train][saving]") {
  struct Fail final {
    void apply(BatchStart, const State& state) const {
      TORCH_CHECK(state.timestamp.batch != 5, "user code");
    }
  };
  const TemporaryFolder folder;
  TrainerOptions saving = options(folder, "8ba");
  saving.save_async = true;
  Trainer trainer(tiny::net(), saving, Fail{});
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("user code"));
  CHECK(sorted_names(saving.save_folder) == Names{"ep0-ba2", "ep1-ba4", "latest"});
  CHECK_NOTHROW(checkpoint::read_snapshot(saving.save_folder + "/latest"));
}

TEST_CASE("a signal ends the run after the batch, saved and resumable", "[train][signals]") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const TemporaryFolder folder;
    auto whole = tiny::net(1, 0.5);
    TrainerOptions plain = options(folder, "2ep");
    plain.save_folder = "";
    Trainer<>(whole, plain).fit();
    for (const std::int64_t at : {0, 2, 4}) {  // 2: the last of the first epoch
      TrainerOptions stopping = options(folder, "2ep");
      stopping.save_folder = (folder / std::to_string(at)).string();
      stopping.save_interval = "100ba";
      stopping.autoresume = true;
      stopping.replace_signal_handlers = true;
      stopping.save_async = at == 2;
      const auto before = handler_of(signal).sa_handler;
      {
        Warnings warnings;
        Trainer trainer(tiny::net(1, 0.5), stopping, SignalAt{.batch = at, .signal = signal});
        trainer.fit();
        CHECK(trainer.stop_signal() == signal);
        CHECK(trainer.state().timestamp.batch == at + 1);
        CHECK(trainer.template get<SignalAt>().fit_ends == 0);
        CHECK(sorted_names(stopping.save_folder).size() == 2);
        REQUIRE(warnings.texts.size() == 1);
        CHECK_THAT(warnings.texts[0], ContainsSubstring("ended the run after batch"));
      }
      CHECK(handler_of(signal).sa_handler == before);
      auto model = tiny::net(5, 0.5);
      Trainer rest(model, stopping, SignalAt{.batch = 100});
      rest.fit();
      CHECK(rest.stop_signal() == 0);
      CHECK(rest.state().timestamp.epoch == 2);
      CHECK(at::equal(tiny::flat(*whole), tiny::flat(*model)));
    }
  }
}

TEST_CASE("an evaluation that a signal puts off is made by the run that goes on",
          "[train][signals]") {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& name, std::int64_t at, Names& seen) {
    TrainerOptions now = options(folder, "2ep");
    now.save_folder = (folder / name).string();
    now.save_interval = "100ba";
    now.autoresume = true;
    now.replace_signal_handlers = true;
    now.eval = {{"often", tiny::batches(1), {.interval = "1ba"}},
                {"seldom", tiny::batches(2), {.interval = "2ba"}}};
    Warnings warnings;
    Trainer trainer(tiny::net(1, 0.5), now, SignalAt{.batch = at}, Evaluations{&seen});
    trainer.fit();
    return trainer.state().timestamp.batch;
  };
  Names whole;
  CHECK(run("whole", 100, whole) == 6);
  CHECK(whole.size() == 9);
  for (const std::int64_t at : {0, 1, 2}) {  // 2: the last of the first epoch
    Names parts;
    CHECK(run(std::to_string(at), at, parts) == at + 1);
    CHECK(parts.size() < whole.size());
    CHECK(run(std::to_string(at), 100, parts) == 6);
    CHECK(parts == whole);
  }
}

namespace {
volatile std::sig_atomic_t theirs = 0;
}

TEST_CASE("a program's own handlers are left alone", "[train][signals]") {
  const TemporaryFolder folder;
  struct sigaction own{};
  struct sigaction before{};
  own.sa_handler = [](int) { theirs = 1; };
  ::sigaction(SIGTERM, &own, &before);
  Trainer trainer(tiny::net(), options(folder), SignalAt{.batch = 2});
  trainer.fit();
  ::sigaction(SIGTERM, &before, nullptr);
  CHECK(theirs == 1);
  CHECK(trainer.stop_signal() == 0);
  CHECK(trainer.state().timestamp.batch == 6);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
