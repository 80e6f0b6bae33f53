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
          "5 ranks cannot share equally; take 4 or 6 ranks, or put "
          "\"state/global_batch\" into load_ignore_keys to go on with batches of 30"));
  rest.train = Fixed{sharded_runs::texts(6, 48)};
  CHECK(Trainer<>(sharded_runs::gpt2().ptr(), rest).state().train_dataloader_len == 2);
  rest = options();
  rest.load_path = checkpoint();
  rest.load_ignore_keys = {"state/global_batch"};
  const Trainer<> trainer(sharded_runs::gpt2().ptr(), rest);
  CHECK(trainer.state().train_dataloader_len == 2);
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
  CHECK(run_ranks("rank body: others whose loader has the batches already", 3, limit) ==
        all_passed);
  CHECK(run_ranks("rank body: so many that they cannot share them", 5, limit) == all_passed);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
