#include <tutti/checkpoint/sharded_checkpoint.hpp>

#include <barrier>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/convert.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
using Names = std::vector<std::string>;

namespace {

// Ranks in threads of one process.
class Ranks {
 public:
  explicit Ranks(int count) : texts_(static_cast<std::size_t>(count)), barrier_(count) {}

  struct Group {
    int place;
    Ranks& all;

    int rank() const { return place; }
    int size() const { return static_cast<int>(all.texts_.size()); }
    std::vector<std::string> all_gather_bytes(const std::string& text) {
      all.texts_[static_cast<std::size_t>(place)] = text;
      all.barrier_.arrive_and_wait();
      auto out = all.texts_;
      all.barrier_.arrive_and_wait();
      return out;
    }
    std::string broadcast_bytes(const std::string& text, int source) {
      return all_gather_bytes(text)[static_cast<std::size_t>(source)];
    }
  };

  // What body(group) throws on each rank.
  static Names run(int count, const std::function<void(Group&)>& body) {
    Ranks ranks(count);
    Names out(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        Group group{rank, ranks};
        out[static_cast<std::size_t>(rank)] = message([&] { body(group); });
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return out;
  }

 private:
  Names texts_;
  std::barrier<> barrier_;
};
using Group = Ranks::Group;

const at::Tensor& weight() {
  static const at::Tensor all = at::arange(45, at::kFloat).view({9, 5});
  return all;
}

TensorShard shard_of(const std::string& name, const at::Tensor& whole, const Group& group,
                     std::size_t dim = 0) {
  const TensorBox box = shard_box(whole.sizes().vec(), group.rank(), group.size(), dim);
  return {.name = name,
          .part = whole.narrow(static_cast<std::int64_t>(dim), box.offsets[dim], box.sizes[dim]),
          .offsets = box.offsets};
}

ShardedSnapshot snapshot(const Group& group, double scale = 1) {
  ShardedSnapshot out;
  out.folders["model"] = {
      shard_of("w", weight() * scale, group),
      shard_of("columns", weight(), group, 1),
      shard_of("few", at::ones({2}), group),
      shard_of("none", at::ones({0, 3}), group),
      TensorShard{.name = "mean", .part = at::full({4}, 0.5), .replicated = true},
      TensorShard{.name = "seen", .part = at::scalar_tensor(41, at::kLong), .replicated = true}};
  out.folders["optim"] = {shard_of("state.w.exp_avg", weight() * 2, group)};
  out.own = {{"generator", at::full({3}, group.rank(), at::kLong)}};
  out.state.put("batch", std::int64_t{200});
  out.meta.put("run", std::string("r"));
  return out;
}

void save(const std::filesystem::path& target, int ranks, double scale = 1,
          bool overwrite = false) {
  for (const std::string& text : Ranks::run(ranks, [&](Group& group) {
         write_sharded(target, snapshot(group, scale), group, overwrite);
       })) {
    REQUIRE(text == "nothing");
  }
}

std::string refusal(const std::filesystem::path& path) {
  return message([&] { ShardedCheckpoint saved(path); });
}

}  // namespace

TEST_CASE("any number of ranks writes a checkpoint that any number reads bit for bit",
          "[checkpoint][sharded]") {
  for (const int ranks : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    save(folder / "a", ranks);
    CHECK(sorted_names(folder.path()) == Names{"a"});
    const ShardedCheckpoint saved(folder / "a");
    saved.verify();
    CHECK(saved.ranks() == ranks);
    CHECK(saved.state().get<std::int64_t>("batch") == 200);
    CHECK(saved.manifest().meta.get<std::string>("run") == "r");
    const ShardedFiles& model = saved.folder("model");
    CHECK(model.tensors().size() == 6);
    CHECK(model.read("w").equal(weight()));
    CHECK(model.read("columns").equal(weight()));
    CHECK(model.read("few").equal(at::ones({2})));
    CHECK(model.read("none").sizes() == at::IntArrayRef({0, 3}));
    CHECK(model.read("mean").equal(at::full({4}, 0.5)));
    CHECK(model.read("seen").item<std::int64_t>() == 41);
    CHECK(saved.folder("optim").read("state.w.exp_avg").equal(weight() * 2));
    for (int reader = 0; reader < 5; ++reader) {
      const TensorBox box = shard_box({9, 5}, reader, 5);
      CHECK(model.read("w", box).equal(weight().narrow(0, box.offsets[0], box.sizes[0])));
      CHECK(saved.own_of(reader).size() == (reader < ranks ? 1U : 0U));
    }
    CHECK(saved.own_of(ranks - 1)[0].second.equal(at::full({3}, ranks - 1, at::kLong)));
    CHECK_THAT(message([&] { static_cast<void>(saved.folder("ema")); }),
               ContainsSubstring("has no tensors of 'ema'"));
    CHECK_FALSE(saved.has_folder("ema"));
  }
}

TEST_CASE("saved by 2, then by what 3, 1, 4 and 2 ranks read, the values stay equal",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  save(folder / "0", 2);
  int count = 0;
  for (const int ranks : {3, 1, 4, 2}) {
    const ShardedCheckpoint before(folder / std::to_string(count++));
    const auto texts = Ranks::run(ranks, [&](Group& group) {
      ShardedSnapshot own;
      const TensorBox box = shard_box({9, 5}, group.rank(), group.size());
      for (const char* name : {"w", "columns"}) {
        own.folders["model"].push_back(
            {.name = name, .part = before.folder("model").read(name, box), .offsets = box.offsets});
      }
      write_sharded(folder / std::to_string(count), own, group);
    });
    REQUIRE(texts == Names(static_cast<std::size_t>(ranks), "nothing"));
  }
  const ShardedCheckpoint last(folder / "4");
  CHECK(last.folder("model").read("w").equal(weight()));
  CHECK(last.folder("model").read("columns").equal(weight()));
}

TEST_CASE("a save never writes into what is there, and replaces it whole when asked to",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  save(folder / "a", 3);
  const auto texts =
      Ranks::run(2, [&](Group& group) { write_sharded(folder / "a", snapshot(group, 7), group); });
  for (const std::string& text : texts) {
    CHECK_THAT(text, ContainsSubstring("exists; set overwrite to replace it"));
  }
  CHECK(ShardedCheckpoint(folder / "a").folder("model").read("w").equal(weight()));
  save(folder / "a", 2, 7, true);
  const ShardedCheckpoint saved(folder / "a");
  CHECK(saved.ranks() == 2);
  CHECK(saved.folder("model").read("w").equal(weight() * 7));
  CHECK(sorted_names(folder / "a/model").size() == 2);
  CHECK(sorted_names(folder.path()) == Names{"a"});
}

TEST_CASE("when one rank fails all throw the same, and nothing of the checkpoint remains",
          "[checkpoint][sharded]") {
  const auto failure = [](const std::function<void(ShardedSnapshot&, int)>& spoil) {
    const TemporaryFolder folder;
    const auto texts = Ranks::run(3, [&](Group& group) {
      ShardedSnapshot own = snapshot(group);
      spoil(own, group.rank());
      write_sharded(folder / "a", own, group);
    });
    CHECK(texts == Names(3, texts[0]));
    CHECK(sorted_names(folder.path()).empty());
    return texts[0];
  };
  CHECK_THAT(failure([](ShardedSnapshot& own, int rank) {
               if (rank == 2) {
                 own.folders["model"][0].part = at::Tensor();
               }
             }),
             ContainsSubstring("rank 2: checkpoint: the shard of 'w' is undefined"));
  CHECK_THAT(failure([](ShardedSnapshot& own, int rank) {
               if (rank == 2) {
                 own.folders["model"][0].part = at::ones({0, 5});
                 own.folders["model"][0].offsets = {9, 0};
               }
             }),
             ContainsSubstring("no rank gave [6:9, 0:5] of the tensor 'w' of shape [0:9, 0:5]"));
  CHECK_THAT(failure([](ShardedSnapshot& own, int rank) {
               if (rank == 1) {
                 own.folders["model"].erase(own.folders["model"].begin());
               }
             }),
             ContainsSubstring("no rank gave [3:6, 0:5] of the tensor 'w' of shape [0:9, 0:5]"));
  CHECK_THAT(failure([](ShardedSnapshot& own, int) { own.folders["model"][4].replicated = false; }),
             ContainsSubstring("rank 0 and rank 1 both gave [0:4] of the tensor 'mean'; mark it "
                               "replicated"));
  CHECK_THAT(failure([](ShardedSnapshot& own, int rank) {
               if (rank == 1) {
                 own.folders["model"][0].part = own.folders["model"][0].part.to(at::kDouble);
               }
             }),
             ContainsSubstring("'w' is F32 on rank 0 and F64 on rank 1"));
  CHECK_THAT(failure([](ShardedSnapshot& own, int rank) {
               if (rank == 1) {
                 own.folders["ema"] = own.folders["optim"];
               }
             }),
             ContainsSubstring("rank 1: this rank has shards of 'ema', rank 0 has none"));
  CHECK_THAT(failure([](ShardedSnapshot& own, int) { own.folders["../a"] = {}; }),
             ContainsSubstring("'../a' is no name of a folder"));
  CHECK_THAT(failure([](ShardedSnapshot& own, int) { own.state.put("t", at::ones({1})); }),
             ContainsSubstring(
                 "the tensor 't' of the state of a sharded checkpoint is in none of its folders"));
  CHECK_THAT(
      failure([](ShardedSnapshot& own, int) { own.folders["optim"][0].offsets = {0, 0, 0}; }),
      ContainsSubstring("has 3 offsets, expected 2"));
}

TEST_CASE("a lost, foreign, cut or changed file is named", "[checkpoint][sharded]") {
  const std::string first = "model/shard-00001-model-00001-of-00001.safetensors";
  const std::string last = "model/shard-00003-model-00001-of-00001.safetensors";
  const auto damage = [](const std::function<void(const std::filesystem::path&)>& spoil) {
    const TemporaryFolder folder;
    save(folder / "a", 3);
    spoil(folder / "a");
    return message([&] { ShardedCheckpoint(folder / "a").verify(); });
  };
  CHECK_THAT(damage([&](const auto& path) { std::filesystem::remove(path / last); }),
             ContainsSubstring(last + "' is missing, which the manifest lists"));
  CHECK_THAT(
      damage([&](const auto& path) { write_bytes(path / last, read_bytes(path / last) + "x"); }),
      ContainsSubstring("it belongs to another checkpoint"));
  CHECK_THAT(damage([&](const auto& path) {
               std::filesystem::copy(path / first,
                                     path / "model/shard-00004-model-00001-of-00001.safetensors");
             }),
             ContainsSubstring("is not of this checkpoint"));
  CHECK_THAT(damage([&](const auto& path) {
               std::string bytes = read_bytes(path / first);
               bytes.back() = static_cast<char>(bytes.back() ^ 1);
               write_bytes(path / first, bytes);
             }),
             ContainsSubstring(first + "' has the checksum"));
  CHECK_THAT(damage([&](const auto& path) { std::filesystem::remove(path / "manifest.json"); }),
             ContainsSubstring("has no manifest.json"));
}

TEST_CASE("whole and sharded checkpoints are told apart", "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  save(folder / "sharded", 2);
  Snapshot whole;
  whole.model.put("w", weight());
  write_snapshot(folder / "whole", whole);
  CHECK_THAT(refusal(folder / "whole"), ContainsSubstring("is a whole checkpoint"));
  CHECK_THAT(message([&] { read_snapshot(folder / "sharded"); }),
             ContainsSubstring("read it by checkpoint::read_checkpoint"));
  point_latest(folder / "latest", "sharded");
  CHECK(ShardedCheckpoint(folder / "latest").ranks() == 2);
}

TEST_CASE("what a dead save left is removed by the next one", "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / ".tmp-a-0123456789ab/model");
  save(folder / "a", 2);
  CHECK(sorted_names(folder.path()) == Names{"a"});
}

TEST_CASE("whole weights become shards and whole again", "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  write_safetensors(folder / "whole.safetensors",
                    {{"w", weight()}, {"few", at::ones({2})}, {"n", at::scalar_tensor(3)}});
  for (const int ranks : {1, 3, 20}) {
    const auto target = folder / std::to_string(ranks);
    shard_weights(folder / "whole.safetensors", target, ranks);
    CHECK(sorted_names(target).size() == std::min<std::size_t>(static_cast<std::size_t>(ranks), 9));
    const auto again = folder / (std::to_string(ranks) + ".safetensors");
    consolidate(ShardedFiles(target), again);
    const SafetensorsFile file(again);
    CHECK(file.read("w").equal(weight()));
    CHECK(file.read("few").equal(at::ones({2})));
    CHECK(file.read("n").item<double>() == 3);
  }
  CHECK_THAT(message([&] { shard_weights(folder / "whole.safetensors", folder / "3", 2); }),
             ContainsSubstring("exists or is no name"));
  CHECK_THROWS_AS(shard_weights(folder / "whole.safetensors", folder / "0", 0), c10::ValueError);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
