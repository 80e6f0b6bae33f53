#include <tutti/train/sharded_job.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/sharded_snapshot.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using checkpoint::ShardedSnapshot;
using dist::Communicator;
using train::ShardedJob;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

ShardedSnapshot part(int rank, int ranks, double value) {
  const auto box = checkpoint::shard_box({5, 3}, rank, ranks);
  ShardedSnapshot out;
  out.folders["model"] = {{.name = "weight",
                           .part = at::full(box.sizes, value),
                           .offsets = box.offsets,
                           .shape = {5, 3}}};
  out.own = {{"stream", at::full({2}, rank, at::kLong)}};
  out.meta.put("batch", std::int64_t{7});
  return out;
}

at::Tensor weight(const fs::path& path) {
  return checkpoint::read_checkpoint(path).model.tensor("weight");
}

checkpoint::Saver::Target target(const TemporaryFolder& folder, const std::string& name) {
  return {.path = (folder / name).string(), .link = (folder / "latest").string(), .id = "an-id"};
}

/// What each rank throws of a save.
Names save(
    const checkpoint::Saver::Target& to, double value,
    const std::function<void(ShardedSnapshot&, int)>& spoil = [](ShardedSnapshot&, int) {},
    std::vector<checkpoint::Mirror*> mirrors = {}) {
  return ThreadRanks::run(3, [&](Communicator& world) {
    ShardedSnapshot own = part(world.rank(), world.size(), value);
    spoil(own, world.rank());
    ShardedJob(to, std::move(own),
               world.rank() == 0 ? mirrors : std::vector<checkpoint::Mirror*>{})(world);
  });
}

struct Told final : checkpoint::Mirror {
  void written(const std::string& path, const std::string&) noexcept override {
    whole = weight(path).sizes() == at::IntArrayRef({5, 3});
    ++count;
  }
  bool failed() const noexcept override { return false; }
  void check() override {}
  bool wait(std::chrono::milliseconds) override { return true; }
  bool fetch_latest(const std::string&, const std::string&) override { return false; }
  bool fetch(const std::string&, const std::string&) override { return false; }
  int count = 0;
  bool whole = false;
};

}  // namespace

TEST_CASE("all ranks write, one points, tells and removes", "[train][sharded]") {
  const TemporaryFolder folder;
  Told told;
  CHECK(save(target(folder, "a"), 1) == Names(3, "nothing"));
  auto second = target(folder, "b");
  second.surplus = {(folder / "a").string()};
  CHECK(save(second, 2, [](ShardedSnapshot&, int) {}, {&told}) == Names(3, "nothing"));
  CHECK(told.count == 1);
  CHECK(told.whole);
  CHECK(sorted_names(folder.path()) == Names{"b", "latest"});
  CHECK(fs::read_symlink(folder / "latest") == "b");
  CHECK(weight(folder / "latest").equal(at::full({5, 3}, 2.0)));
  CHECK(checkpoint::carries(folder / "b", "an-id"));
  CHECK(checkpoint::ShardedCheckpoint(folder / "b")
            .own_of(2)[0]
            .second.equal(at::full({2}, 2, at::kLong)));
}

TEST_CASE("what is there stays when a rank cannot write", "[train][sharded]") {
  const TemporaryFolder folder;
  REQUIRE(save(target(folder, "a"), 1) == Names(3, "nothing"));
  const auto check = [&](const Names& texts, const std::string& says) {
    for (const std::string& text : texts) {
      CHECK_THAT(text, ContainsSubstring(says));
    }
    CHECK(weight(folder / "latest").equal(at::full({5, 3}, 1.0)));
    for (const std::string& name : sorted_names(folder.path())) {
      CHECK_FALSE(name.starts_with(".tmp"));
    }
  };
  auto next = target(folder, "b");
  next.surplus = {(folder / "a").string()};
  check(save(next, 2,
             [](ShardedSnapshot& own, int rank) {
               if (rank == 1) {
                 own.folders["model"][0].part = at::Tensor();
               }
             }),
        "rank 1: checkpoint: the shard of 'weight' is undefined");
  check(save(next, 2,
             [](ShardedSnapshot& own, int rank) {
               if (rank == 2) {
                 own.folders.clear();
               }
             }),
        "no rank gave [4:5, 0:3] of the tensor 'weight'");
  check(save(next, 2,
             [](ShardedSnapshot& own, int rank) {
               if (rank == 0) {
                 own.state.put("lost", at::ones({2}));
               }
             }),
        "the tensor 'lost' of the state of a sharded checkpoint is in none of its folders");
  fs::create_directory(folder / "c");
  check(save(target(folder, "c"), 2), "is there already and is not this run's");
  fs::remove(folder / "latest");
  fs::create_directory(folder / "latest");  // written, and not pointed to
  for (const std::string& text : save(next, 2)) {
    CHECK_THAT(text, ContainsSubstring("latest"));
  }
  CHECK(weight(folder / "a").equal(at::full({5, 3}, 1.0)));
  CHECK(weight(folder / "b").equal(at::full({5, 3}, 2.0)));
}

TEST_CASE("a job writes what the tensors were when it copied them", "[train][sharded]") {
  const TemporaryFolder folder;
  const auto texts = ThreadRanks::run(2, [&](Communicator& world) {
    ShardedSnapshot own = part(world.rank(), world.size(), 1);
    const at::Tensor live = own.folders["model"][0].part;
    checkpoint::HostCopies copies;
    ShardedJob job({.path = (folder / "a").string()}, std::move(own));
    job.copy(copies);
    live.fill_(9);
    job(world);
  });
  CHECK(texts == Names(2, "nothing"));
  CHECK(weight(folder / "a").equal(at::full({5, 3}, 1.0)));
  CHECK_FALSE(checkpoint::carries(folder / "a", "an-id"));
  for (const std::string& text : ThreadRanks::run(2, [&](Communicator& world) {
         ShardedJob({.path = (folder / "a").string()}, part(world.rank(), world.size(), 2))(world);
       })) {
    CHECK_THAT(text, ContainsSubstring("exists; set overwrite to replace it"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
