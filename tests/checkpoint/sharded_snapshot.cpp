#include <tutti/checkpoint/sharded_snapshot.hpp>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
using tutti::Archive;
using Names = std::vector<std::string>;

namespace {

/// A run with an optimizer of tutti and one of LibTorch, of which rank `rank` has its rows.
struct Part {
  Snapshot snapshot;
  PartPlaces offsets;

  Part(int rank, int ranks) {
    const auto cut = [&](const std::string& path, const at::Tensor& whole) {
      const TensorBox box = shard_box(whole.sizes().vec(), rank, ranks);
      offsets[path] = {{.offsets = box.offsets, .shape = whole.sizes().vec()}};
      return whole.narrow(0, box.offsets[0], box.sizes[0]);
    };
    snapshot.meta.put("batch", std::int64_t{3});
    snapshot.model.put("fc.weight", cut("model/fc.weight", weight()));
    snapshot.model.put("norm.mean", at::full({2}, rank + 1));  // rank 0's counts
    Archive& first = snapshot.state.child("optimizers/0");
    first.put("parameters", Names{"fc.weight"});
    first.put("shapes", Names{"[5, 2]"});
    const std::string path = "optimizers/0/own/param0/exp_avg";
    first.put("own/param0/exp_avg", cut("state/" + path, weight() * 2));
    first.put("own/param0/step", std::int64_t{3});
    first.put("own/param0/mu_product", 0.25);
    first.put("own/param0/inner/step", std::int64_t{3});
    first.put("own/groups/0/lr", 0.5);
    Archive& second = snapshot.state.child("optimizers/1");
    second.put("parameters", Names{""});
    second.put("shapes", Names{"[5, 2]"});
    const std::string other = "optimizers/1/state/0/momentum_buffer";
    second.put("state/0/step", std::int64_t{3});
    second.put("state/0/momentum_buffer", cut("state/" + other, weight() * 3));
    snapshot.state.put("policies/EMA/count", at::full({1}, 4, at::kLong));
    snapshot.state.put("lr", 0.5);
    snapshot.state.put("rng/" + std::to_string(rank) + "/libtorch/cpu", at::full({2}, rank));
  }

  static at::Tensor weight() { return at::arange(10, at::kFloat).view({5, 2}); }
};

void write(const std::filesystem::path& target, int ranks) {
  std::deque<ShardedSnapshot> parts;
  std::deque<tutti::checkpoint::detail::ShardedSave> saves;
  std::vector<std::string> reports;
  for (int rank = 0; rank < ranks; ++rank) {
    const Part part(rank, ranks);
    parts.push_back(to_sharded(part.snapshot, part.offsets, rank));
    saves.emplace_back(target, parts.back(), rank, ranks, false);
  }
  const std::string folder = saves.front().open();
  for (auto& save : saves) {
    reports.push_back(save.write(folder));
  }
  saves.front().commit(reports);
}

}  // namespace

TEST_CASE("a rank writes its rows, rank 0 all else", "[checkpoint][sharded]") {
  const Part part(1, 2);
  const ShardedSnapshot second = to_sharded(part.snapshot, part.offsets, 1);
  REQUIRE(second.folders.at("model").size() == 1);
  CHECK(second.folders.at("model")[0].name == "fc.weight");
  CHECK(second.folders.at("model")[0].offsets == std::vector<std::int64_t>{3, 0});
  CHECK(second.folders.at("state").size() == 1);  // of a parameter without a name
  REQUIRE(second.own.size() == 1);
  CHECK(second.own[0].first == "libtorch/cpu");
  CHECK_FALSE(second.state.contains("rng"));
  const Part none(0, 2);
  const ShardedSnapshot first = to_sharded(none.snapshot, none.offsets, 0);
  CHECK(first.folders.at("model").size() == 2);
  const auto& optim = first.folders.at("optim");
  REQUIRE(optim.size() == 3);
  CHECK(optim[0].name == "state.fc.weight.exp_avg");
  CHECK(optim[1].name == "state.fc.weight.step");  // as Python has it, once for all ranks
  CHECK(optim[1].part.scalar_type() == at::kFloat);
  CHECK(optim[1].part.equal(at::scalar_tensor(3.0, at::kFloat)));
  CHECK(optim[2].name == "state.fc.weight.mu_product");
  CHECK(optim[2].part.item<float>() == 0.25F);
  CHECK(second.folders.at("optim").size() == 1);
  CHECK(first.folders.at("state").size() == 2);
  CHECK(first.places.at("optimizers/0/own/param0/exp_avg") == "optim/state.fc.weight.exp_avg");
  CHECK(first.places.at("policies/EMA/count") == "state/policies/EMA/count");
}

TEST_CASE("a rank that has several boxes of a tensor writes as many files",
          "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  const at::Tensor whole = at::arange(24, at::kFloat).view({6, 4});
  std::deque<ShardedSnapshot> parts;
  std::deque<tutti::checkpoint::detail::ShardedSave> saves;
  std::vector<std::string> reports;
  const std::int64_t first[] = {0, 1, 3};  // of two tensors of three rows, one behind the other
  for (int rank = 0; rank < 3; ++rank) {
    const std::int64_t rows = (rank < 2 ? first[rank + 1] : 3) - first[rank];
    Snapshot snapshot;
    snapshot.model.put("qkv", at::cat({whole.narrow(0, first[rank], rows),
                                       whole.narrow(0, 3 + first[rank], rows)}));
    snapshot.model.put("norm", at::ones({3}));
    std::vector<PartPlace> boxes;
    for (std::int64_t i = 0; rows > 0 && i < 2; ++i) {
      boxes.push_back({.offsets = {3 * i + first[rank], 0},
                       .shape = {6, 4},
                       .own = TensorBox{{i * rows, 0}, {rows, 4}}});
    }
    parts.push_back(to_sharded(snapshot, {{"model/qkv", boxes}}, rank));
    saves.emplace_back(folder / "a", parts.back(), rank, 3, false);
  }
  CHECK(parts[0].folders.at("model").size() == 3);
  CHECK(parts[2].folders.empty());
  const std::string place = saves.front().open();
  for (auto& save : saves) {
    reports.push_back(save.write(place));
  }
  saves.front().commit(reports);
  Names files;
  const ShardedCheckpoint saved(folder / "a");
  for (const auto& [name, facts] : saved.manifest().files) {
    files.push_back(name);
  }
  CHECK(files == Names{"model/shard-00001-model-00001-of-00002.safetensors",
                       "model/shard-00001-model-00002-of-00002.safetensors",
                       "model/shard-00002-model-00001-of-00002.safetensors",
                       "model/shard-00002-model-00002-of-00002.safetensors"});
  const Snapshot read = read_checkpoint(folder / "a");
  CHECK(read.model.tensor("qkv").equal(whole));
  CHECK(read.model.tensor("norm").equal(at::ones({3})));
}

TEST_CASE("streams are numbered by the ranks that draw by themselves", "[checkpoint][sharded]") {
  Snapshot snapshot;
  snapshot.state.put("rng/1/libtorch/cpu", at::full({2}, 1));
  const ShardedSnapshot third = to_sharded(snapshot, {}, 2, 1);
  CHECK(third.stream == 1);
  CHECK(third.own.size() == 1);
  CHECK(to_sharded(snapshot, {}, 1).own.size() == 1);
  CHECK(to_sharded(snapshot, {}, 3, 0).own.empty());
}

TEST_CASE("a sharded checkpoint is read whole, or a rank's rows of it", "[checkpoint][sharded]") {
  const TemporaryFolder folder;
  write(folder / "a", 2);
  const Snapshot whole = read_checkpoint(folder / "a");
  CHECK(whole.meta.get<std::int64_t>("batch") == 3);
  CHECK(whole.model.tensor("fc.weight").equal(Part::weight()));
  CHECK(whole.model.tensor("norm.mean").equal(at::full({2}, 1)));
  CHECK(whole.state.tensor("optimizers/0/own/param0/exp_avg").equal(Part::weight() * 2));
  CHECK(whole.state.tensor("optimizers/1/state/0/momentum_buffer").equal(Part::weight() * 3));
  CHECK(whole.state.tensor("policies/EMA/count").item<std::int64_t>() == 4);
  CHECK(whole.state.get<double>("lr") == 0.5);
  CHECK(whole.state.get<std::int64_t>("optimizers/0/own/param0/step") == 3);
  const at::Tensor step =
      ShardedCheckpoint(folder / "a").folder("optim").read("state.fc.weight.step");
  CHECK(step.dim() == 0);
  CHECK(step.item<float>() == 3);
  CHECK(whole.state.child("rng").size() == 2);
  CHECK(whole.state.tensor("rng/1/libtorch/cpu").equal(at::full({2}, 1)));
  CHECK(read_checkpoint(folder / "a", {.state = false}).state.empty());

  ShardedSource source(folder / "a");
  const Snapshot third = source.snapshot(1, true);
  CHECK(third.model.tensor("fc.weight").is_meta());
  CHECK(third.state.child("rng").size() == 2);
  CHECK(third.state.child("rng/0").empty());
  const at::Tensor rows = source.read_rows(third.model.tensor("fc.weight"), 2, 3);
  CHECK(rows.equal(Part::weight().narrow(0, 4, 1)));
  Names asked;
  const Archive state =
      source.filled(third.state, [&](const std::string& parameter, const at::Tensor& placeholder) {
        asked.push_back(parameter);
        return source.read_rows(placeholder, 2, 3);
      });
  CHECK(asked == Names{"fc.weight", ""});
  CHECK(state.tensor("optimizers/0/own/param0/exp_avg").equal(Part::weight().narrow(0, 4, 1) * 2));
  CHECK(state.tensor("policies/EMA/count").item<std::int64_t>() == 4);
  CHECK_THAT(message([&] { static_cast<void>(source.read(at::ones({1}))); }),
             ContainsSubstring("was to be read that is not of it"));
}

TEST_CASE("whose state a tensor is, by its path", "[checkpoint][sharded]") {
  const auto entry = tutti::checkpoint::detail::optimizer_entry("optimizers/1/own/param12/exp_avg");
  REQUIRE(entry);
  CHECK(entry->optimizer == "1");
  CHECK(entry->parameter == 12);
  CHECK(entry->key == "exp_avg");
  CHECK(tutti::checkpoint::detail::optimizer_entry("optimizers/0/state/3/al/0")->key == "al/0");
  for (const char* other :
       {"", "optimizers", "optimizers/0", "optimizers/0/own/step", "optimizers/0/own/param/x",
        "optimizers/0/state/3", "policies/EMA", "optimizers/0/state/99999999999999999999999/x"}) {
    INFO(other);
    CHECK_FALSE(tutti::checkpoint::detail::optimizer_entry(other));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
