#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/data/tensor_loader.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using sharded_runs::difference;
using sharded_runs::Losses;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

/// Of two epochs of 48 texts; nobody says how many ranks there are.
TrainerOptions options(std::int64_t batch_size = 6) {
  return sharded_runs::options(sharded_runs::texts(batch_size, 48, 8, /*shuffle=*/true),
                               AdamW{.lr = 1e-2});
}

std::vector<double> losses(TrainerOptions with, const std::string& save = "") {
  Trainer<Losses> trainer(sharded_runs::gpt2().ptr(), std::move(with), Losses{});
  trainer.fit();
  if (!save.empty()) {
    trainer.save_checkpoint(save);
  }
  return trainer.get<Losses>().all;
}

/// Batches of one size.
struct Fixed {
  TensorLoader of;
  void start(std::int64_t epoch, std::int64_t first_batch) { of.start(epoch, first_batch); }
  std::optional<Batch> next() { return of.next(); }
  std::int64_t size() const { return of.size(); }
  std::int64_t batch_size() const { return of.batch_size(); }
  void shard(std::int64_t rank, std::int64_t ranks) { of.shard(rank, ranks); }
};

/// Batches of one size on all ranks.
struct Resizable : Fixed {
  void set_batch_size(std::int64_t size) { of.set_batch_size(size); }
};

std::string checkpoint() {
  return std::string(std::getenv("TUTTI_TEST_FOLDER")) + "/saved";
}

}  // namespace

TEST_CASE("rank body: a run of two that stops in its first epoch", "[.rank]") {
  tutti_test::initialize();
  TrainerOptions half = options();
  half.max_duration = "3ba";
  CHECK(losses(std::move(half), checkpoint()).size() == 3);
}

TEST_CASE("rank body: a run of one with small batches", "[.rank]") {
  tutti_test::initialize();
  TrainerOptions half = options(3);
  half.max_duration = "3ba";
  CHECK(losses(std::move(half), checkpoint() + " small").size() == 3);
}

// Steps 4 to 8 of those that one process makes of the whole batches.
TEST_CASE("rank body: others go on with its batches", "[.rank]") {
  const auto group = tutti_test::initialize();
  TrainerOptions rest = options();
  rest.load_path = checkpoint();
  Trainer<Losses> trainer(sharded_runs::gpt2().ptr(), rest, Losses{});
  const auto& notes = trainer.load_report().notes;
  REQUIRE(notes.size() == 1);
  CHECK(notes.front() == "the checkpoint is of 2 ranks, and this run has " +
                             std::to_string(group->size()) + ", so each has batches of " +
                             std::to_string(12 / group->size()) +
                             " examples in place of 6: together 12 as before");
  CHECK(trainer.state().train_dataloader_len == 4);
  trainer.fit();
  CHECK(trainer.state().timestamp.sample == 96);
  CHECK(trainer.state().timestamp.batch == 8);
  const std::vector<double> second = trainer.get<Losses>().all;
  const std::vector<double> all = alone([&] { return losses(options(12)); });
  REQUIRE(all.size() == 8);
  CHECK(difference(second, {all.begin() + 3, all.end()}) < 1e-5);
}

// Which a run that was shared anew, and saves, has to do each time that it goes on.
TEST_CASE("rank body: others share its batches and save", "[.rank]") {
  const auto group = tutti_test::initialize();
  TrainerOptions more = options();
  more.load_path = checkpoint();
  more.max_duration = "5ba";
  CHECK(losses(std::move(more), checkpoint() + " again").size() == 2);
  TrainerOptions rest = options();
  rest.load_path = checkpoint() + " again";
  const Trainer<> trainer(sharded_runs::gpt2().ptr(), rest);
  REQUIRE(trainer.load_report().notes.size() == 1);
  CHECK(trainer.load_report().notes.front() ==
        "the checkpoint's 4 ranks had shared the batches of others, so each has batches of 3 "
        "examples in place of 6: together 12 as before");
  CHECK(trainer.state().train_dataloader_len == 4);
  rest = options(5);  // of a program that has been changed
  rest.load_path = checkpoint() + " again";
  const Trainer<> changed(sharded_runs::gpt2().ptr(), rest);
  CHECK(changed.state().train_dataloader_len == 3);
}

// All steps are those that one process makes of the whole batches, on ranks with one example more
// than others, and again on as many.
TEST_CASE("rank body: others share its batches unevenly", "[.rank]") {
  const auto group = tutti_test::initialize();
  REQUIRE(group->size() == 5);
  std::vector<std::vector<double>> runs;
  for (const auto stage : {dist::ShardStage::none, dist::ShardStage::optimizer,
                           dist::ShardStage::gradients, dist::ShardStage::parameters}) {
    TrainerOptions middle = options();
    middle.load_path = checkpoint();
    middle.uneven_ranks = true;
    middle.sharding.stage = stage;
    middle.max_duration = "6ba";  // within the second epoch
    const std::string saved = checkpoint() + " of " + std::to_string(static_cast<int>(stage));
    runs.push_back(losses(std::move(middle), saved));

    TrainerOptions rest = options();
    rest.load_path = saved;
    rest.uneven_ranks = true;
    rest.sharding.stage = stage;
    Trainer<Losses> trainer(sharded_runs::gpt2().ptr(), rest, Losses{});
    REQUIRE(trainer.load_report().notes.size() == 1);
    CHECK(trainer.load_report().notes.front() ==
          "the checkpoint's 5 ranks had shared the batches of others, so each has batches of 2 "
          "examples, the first 2 ranks of one more, in place of 6: together 12 as before");
    CHECK(trainer.state().train_dataloader_len == 4);
    trainer.fit();
    CHECK(trainer.state().timestamp.sample == 96);
    CHECK(trainer.state().timestamp.batch == 8);
    const std::vector<double>& second = trainer.get<Losses>().all;
    runs.back().insert(runs.back().end(), second.begin(), second.end());
  }
  TrainerOptions rest = options();
  rest.load_path = checkpoint();
  rest.uneven_ranks = true;
  const Trainer<> trainer(sharded_runs::gpt2().ptr(), rest);
  CHECK(trainer.load_report().notes.front() ==
        "the checkpoint is of 2 ranks, and this run has 5, so each has batches of 2 examples, the "
        "first 2 ranks of one more, in place of 6: together 12 as before");
  const std::vector<double> all = alone([&] { return losses(options(12)); });
  REQUIRE(all.size() == 8);
  for (const std::vector<double>& run : runs) {
    CHECK(difference(run, {all.begin() + 3, all.end()}) < 1e-5);
  }
}

TEST_CASE("rank body: a batch that a program lets all ranks share", "[.rank]") {
  const auto group = tutti_test::initialize();
  REQUIRE(group->size() == 5);
  TensorLoader loader = sharded_runs::texts(1, 48, 8, /*shuffle=*/true);
  loader.set_global_batch_size(12);  // before anybody says how many ranks there are
  const std::vector<double> shared =
      losses(sharded_runs::options(std::move(loader), AdamW{.lr = 1e-2}));
  const std::vector<double> all = alone([&] { return losses(options(12)); });
  REQUIRE(all.size() == 8);
  CHECK(difference(shared, all) < 1e-5);
}

// What cannot be: more ranks than examples, and a loader that makes equal batches alone.
TEST_CASE("rank body: too many ranks for its batches", "[.rank]") {
  tutti_test::initialize();
  TrainerOptions rest = options();
  rest.load_path = checkpoint() + " small";
  rest.uneven_ranks = true;
  CHECK_THROWS_WITH(
      Trainer<>(sharded_runs::gpt2().ptr(), rest),
      ContainsSubstring("the checkpoint is of 1 rank with batches of 3 examples, which 4 "
                        "ranks cannot share; take 3 ranks, or put \"state/global_batch\" into "
                        "load_ignore_keys to go on with batches of 24"));
}

TEST_CASE("rank body: others whose loader has the batches already", "[.rank]") {
  const auto group = tutti_test::initialize();
  TrainerOptions rest = options(12 / group->size());
  rest.load_path = checkpoint();
  const Trainer<Losses> trainer(sharded_runs::gpt2().ptr(), rest, Losses{});
  CHECK(trainer.load_report().notes.empty());
  CHECK(trainer.state().train_dataloader_len == 4);
}

TEST_CASE("rank body: so many that they cannot share them", "[.rank]") {
  tutti_test::initialize();
  TrainerOptions rest = options();
  rest.load_path = checkpoint();
  CHECK_THROWS_WITH(
      Trainer<>(sharded_runs::gpt2().ptr(), rest),
      ContainsSubstring(
          "the checkpoint is of 2 ranks with batches of 12 examples together, which "
          "5 ranks cannot share equally; take 4 or 6 ranks, set uneven_ranks = true, with which "
          "some have one example more, or put "
          "\"state/global_batch\" into load_ignore_keys to go on with batches of 30"));
  rest.uneven_ranks = true;
  rest.train = Resizable{sharded_runs::texts(6, 48)};
  CHECK_THROWS_WITH(
      Trainer<>(sharded_runs::gpt2().ptr(), rest),
      ContainsSubstring("5 ranks cannot share equally, and Resizable cannot give some one more, as "
                        "DataLoader, TensorLoader and ImageLoader can; take 4 or 6 ranks"));
  rest.train = Fixed{sharded_runs::texts(6, 48)};
  CHECK(Trainer<>(sharded_runs::gpt2().ptr(), rest).state().train_dataloader_len == 2);
  rest = options();
  rest.load_path = checkpoint();
  rest.load_ignore_keys = {"state/global_batch"};
  const Trainer<> trainer(sharded_runs::gpt2().ptr(), rest);
  CHECK(trainer.state().train_dataloader_len == 2);
}

TEST_CASE("ranks share a batch that they do not divide from the start", "[train][dist]") {
  CHECK(run_ranks("rank body: a batch that a program lets all ranks share", 5,
                  std::chrono::seconds(120)) == all_passed);
}

TEST_CASE("a run that goes on with other ranks keeps its global batch", "[train][dist]") {
  const TemporaryFolder folder;
  ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
  const auto limit = std::chrono::seconds(120);
  REQUIRE(run_ranks("rank body: a run of two that stops in its first epoch", 2, limit) ==
          all_passed);
  for (const int ranks : {1, 3, 4}) {
    CHECK(run_ranks("rank body: others go on with its batches", ranks, limit) == all_passed);
  }
  CHECK(run_ranks("rank body: others share its batches and save", 4, limit) == all_passed);
  CHECK(run_ranks("rank body: others share its batches unevenly", 5, limit) == all_passed);
  CHECK(run_ranks("rank body: others whose loader has the batches already", 3, limit) ==
        all_passed);
  CHECK(run_ranks("rank body: so many that they cannot share them", 5, limit) == all_passed);
  REQUIRE(run_ranks("rank body: a run of one with small batches", 1, limit) == all_passed);
  CHECK(run_ranks("rank body: too many ranks for its batches", 4, limit) == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
