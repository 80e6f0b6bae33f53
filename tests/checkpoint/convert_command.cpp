#include <tutti/checkpoint/convert_command.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/sharded_snapshot.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti::checkpoint;
using Names = std::vector<std::string>;

namespace {

int run(const Names& words) {
  std::vector<const char*> argv{"tutti-checkpoint"};
  for (const std::string& word : words) {
    argv.push_back(word.c_str());
  }
  return convert_main(static_cast<int>(argv.size()), argv.data());
}

}  // namespace

TEST_CASE("tutti-checkpoint converts and verifies", "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  Snapshot snapshot;
  snapshot.model.put("weight", at::arange(10, at::kFloat).view({5, 2}));
  snapshot.state.put("batch", std::int64_t{3});
  write_snapshot(folder / "whole", snapshot);
  const auto path = [&](const char* name) { return (folder / name).string(); };
  CHECK(run({"shard", path("whole"), path("cut"), "2"}) == 0);
  CHECK(ShardedCheckpoint(folder / "cut").ranks() == 2);
  CHECK(run({"consolidate", path("cut"), path("again")}) == 0);
  CHECK(read_snapshot(folder / "again")
            .model.tensor("weight")
            .equal(snapshot.model.tensor("weight")));
  CHECK(run({"verify", path("cut")}) == 0);
  CHECK(run({"verify", path("again")}) == 0);
  const auto file = folder / "cut/model/shard-00002-model-00001-of-00001.safetensors";
  std::string bytes = read_bytes(file);
  bytes.back() ^= 1;
  write_bytes(file, bytes);
  CHECK(run({"verify", path("cut")}) == 1);
  CHECK(run({"consolidate", path("cut"), path("third")}) == 1);
  CHECK(run({"verify", path("none")}) == 1);
  CHECK(sorted_names(folder.path()) == Names{"again", "cut", "whole"});
}

TEST_CASE("a command line of tutti-checkpoint that makes no sense is refused",
          "[checkpoint][sharded]") {
  CHECK(run({"--help"}) == 0);
  for (const Names& words :
       std::vector<Names>{{}, {"shard", "a", "b"}, {"shard", "a", "b", "two"}, {"verify"}, {"x"}}) {
    CHECK(run(words) == 2);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
