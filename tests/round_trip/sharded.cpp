// Sharded checkpoints: what torch.distributed.checkpoint wrote is read here, what is written here
// is read there, by any number of ranks.

#include "support/catch.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/convert.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace checkpoint = tutti::checkpoint;

struct Alone {
  int rank() const { return 0; }
  int size() const { return 1; }
  std::string broadcast_bytes(const std::string& text, int) const { return text; }
  std::vector<std::string> all_gather_bytes(const std::string& text) const { return {text}; }
};

std::vector<checkpoint::NamedTensor> tensors() {
  return {{"w", at::arange(36, at::kFloat).view({9, 4})},
          {"col", at::arange(32).view({4, 8}).to(at::kBFloat16)},
          {"few", at::ones({2}, at::kDouble)},
          {"step", at::scalar_tensor(2.5)},
          {"n", at::scalar_tensor(41, at::kLong)}};
}

// Two ranks of which each has two boxes of tensors that are cut in several places, as queries, keys
// and values of a model that is spread over ranks.
void write_in_boxes(const std::filesystem::path& target) {
  constexpr std::int64_t rows[][2] = {{0, 2}, {5, 2}, {2, 3}, {7, 2}};  // first and count, by rank
  std::deque<checkpoint::ShardedSnapshot> parts(2);
  std::deque<checkpoint::detail::ShardedSave> saves;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<checkpoint::TensorShard>& shards =
        parts[static_cast<std::size_t>(rank)].folders["model"];
    for (const auto& [name, tensor] : tensors()) {
      if (name != "w" && name != "col") {
        shards.push_back({.name = name, .part = tensor, .replicated = true});
        continue;
      }
      const std::int64_t dim = name == "w" ? 0 : 1;
      for (int box = 2 * rank; box < 2 * rank + 2; ++box) {
        const std::int64_t count = std::min(rows[box][1], tensor.size(dim) - rows[box][0]);
        std::vector<std::int64_t> offsets{0, 0};
        offsets[static_cast<std::size_t>(dim)] = rows[box][0];
        shards.push_back({.name = name,
                          .part = tensor.narrow(dim, rows[box][0], count),
                          .offsets = std::move(offsets)});
      }
    }
    saves.emplace_back(target, parts[static_cast<std::size_t>(rank)], rank, 2, /*overwrite=*/false);
  }
  const std::string folder = saves.front().open();
  std::vector<std::string> reports;
  for (auto& save : saves) {
    reports.push_back(save.write(folder));
  }
  saves.front().commit(reports);
}

}  // namespace

TEST_CASE("sharded checkpoints go to Python's reader and come from its writer",
          "[round_trip][sharded][python]") {
  const std::string modules = "torch.distributed.checkpoint, safetensors";
  const std::string python = tutti_test::python_with(modules);
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with(modules));
  }
  const TemporaryFolder folder;
  const auto run = [&](const std::string& what, int ranks) {
    const std::string script = TUTTI_SOURCE_DIR "/tests/round_trip/sharded.py";
    return std::system((python + " '" + script + "' " + what + " '" + folder.path().string() +
                        "' " + std::to_string(ranks))
                           .c_str());
  };
  REQUIRE(run("make", 3) == 0);
  const checkpoint::ShardedFiles theirs(folder / "python");
  for (const auto& [name, tensor] : checkpoint::read_safetensors(folder / "python.safetensors")) {
    CHECK(theirs.read(name).equal(tensor));
  }
  checkpoint::write_safetensors(folder / "whole.safetensors", tensors());
  checkpoint::ShardedSnapshot snapshot;
  for (const auto& [name, tensor] : tensors()) {
    snapshot.folders["model"].push_back({.name = name, .part = tensor});
  }
  Alone alone;
  checkpoint::write_sharded(folder / "tutti", snapshot, alone);
  std::filesystem::create_directories(folder / "weights");
  checkpoint::shard_weights(folder / "whole.safetensors", folder / "weights/model", 4);
  write_in_boxes(folder / "boxes");
  CHECK(checkpoint::ShardedFiles(folder / "boxes/model").files().size() == 4);
  CHECK(run("check", 2) == 0);
  CHECK(run("check", 1) == 0);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
