#include <tutti/checkpoint/convert.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/weights.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

Snapshot run() {
  Snapshot out;
  out.meta.put("run_name", "calm-motet");
  out.meta.put("saver_id", "an-id");
  out.model.put("fc.weight", at::arange(10, at::kFloat).view({5, 2}));
  out.model.put("fc.bias", at::scalar_tensor(2.5, at::kBFloat16));
  out.model.put("seen", at::full({1}, 7, at::kLong));
  out.model.put("none", at::ones({0, 3}));
  out.state.put("optimizers/0/parameters", Names{"fc.weight", "fc.bias"});
  out.state.put("optimizers/0/shapes", Names{"[5, 2]", "[]"});
  out.state.put("optimizers/0/state/0/exp_avg", at::randn({5, 2}));
  out.state.put("optimizers/0/state/1/exp_avg", at::scalar_tensor(0.25));
  out.state.put("optimizers/0/state/0/step", std::int64_t{3});
  out.state.put("policies/EMA/weights/fc.weight", at::randn({5, 2}));
  for (const char* rank : {"0", "1", "2"}) {
    out.state.put("rng/" + std::string(rank) + "/libtorch/cpu", at::full({3}, rank[0], at::kByte));
  }
  return out;
}

void check_equal(const Snapshot& one, const Snapshot& other) {
  for (const auto part : {&Snapshot::model, &Snapshot::state}) {
    int there = 0;
    (other.*part).each_leaf([&](const std::string&, const tutti::ArchiveLeaf& leaf) {
      there += leaf.tensor() != nullptr ? 1 : 0;
    });
    (one.*part).each_leaf([&](const std::string& name, const tutti::ArchiveLeaf& leaf) {
      if (const at::Tensor* const tensor = leaf.tensor()) {
        INFO(name);
        CHECK(tensor->equal((other.*part).tensor(name)));
        CHECK(tensor->scalar_type() == (other.*part).tensor(name).scalar_type());
        --there;
      }
    });
    CHECK(there == 0);
  }
  CHECK(other.state.get<std::int64_t>("optimizers/0/state/0/step") == 3);
}

}  // namespace

TEST_CASE("a whole checkpoint is cut for any number of ranks and put together again",
          "[checkpoint][sharded]") {
  const Snapshot whole = run();
  const TemporaryFolder folder;
  write_snapshot(folder / "whole", whole);
  for (const int ranks : {3, 7}) {
    const auto cut = folder / ("cut" + std::to_string(ranks));
    const auto again = folder / ("again" + std::to_string(ranks));
    shard_checkpoint(folder / "whole", cut, ranks);
    const ShardedCheckpoint saved(cut);
    saved.verify();
    CHECK(saved.ranks() == ranks);
    CHECK(saved.folder("optim").contains("state.fc.weight.exp_avg"));
    CHECK(saved.folder("optim").read("state.fc.weight.step").item<float>() == 3);
    check_equal(whole, read_checkpoint(cut));
    consolidate_checkpoint(cut, again);
    check_equal(whole, read_snapshot(again));
    CHECK(read_weights(cut).tensor("fc.weight").equal(whole.model.tensor("fc.weight")));
    CHECK_FALSE(read_snapshot(again).meta.contains("saver_id"));
    CHECK(read_snapshot(again).meta.get<std::string>("run_name") == "calm-motet");
  }
  shard_checkpoint(folder / "whole", folder / "two", 2);
  CHECK(read_checkpoint(folder / "two").state.child("rng").size() == 2);
}

TEST_CASE("what cannot be converted is refused, and nothing is left", "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  write_snapshot(folder / "whole", run());
  shard_checkpoint(folder / "whole", folder / "cut", 2);
  CHECK_THAT(message([&] { consolidate_checkpoint(folder / "whole", folder / "x"); }),
             ContainsSubstring("is a whole checkpoint, expected a sharded one"));
  CHECK_THAT(message([&] { shard_checkpoint(folder / "cut", folder / "x", 2); }),
             ContainsSubstring("is sharded, expected one whole"));
  CHECK_THAT(message([&] { shard_checkpoint(folder / "whole", folder / "x", 0); }),
             ContainsSubstring("ranks is 0, expected at least 1"));
  CHECK_THAT(message([&] { shard_checkpoint(folder / "whole", folder / "cut", 2); }),
             ContainsSubstring("exists or is no name of a folder"));
  const fs::path damaged = folder / "cut/model/shard-00002-model-00001-of-00001.safetensors";
  std::string bytes = read_bytes(damaged);
  bytes.back() ^= 1;
  write_bytes(damaged, bytes);
  CHECK_THAT(message([&] { consolidate_checkpoint(folder / "cut", folder / "x"); }),
             ContainsSubstring("was damaged or changed"));
  CHECK(sorted_names(folder.path()) == Names{"cut", "whole"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
