#include <tutti/checkpoint/average.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/safetensors.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace tutti::checkpoint;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

namespace {

// A checkpoint after `batch` batches whose weights are `value`.
std::string write(const TemporaryFolder& folder, const std::string& name, std::int64_t batch,
                  double value, at::IntArrayRef shape = {3}) {
  Snapshot snapshot;
  snapshot.meta.put("batch", batch);
  snapshot.model.put("fc.weight", at::full(shape, value));
  snapshot.model.put("half", at::full({2}, value, at::kBFloat16));
  snapshot.model.put("bn.num_batches_tracked", at::tensor(batch));
  const auto path = folder / name;
  write_snapshot(path, snapshot);
  return path.string();
}

}  // namespace

TEST_CASE("the mean of checkpoints is that of their floating tensors, in 64 bits",
          "[checkpoint][average]") {
  const TemporaryFolder folder;
  const Names paths{write(folder, "a", 1, 16777216), write(folder, "b", 2, 1),
                    write(folder, "c", 3, 1)};
  const Archive mean = average_weights(paths);
  CHECK(mean.names() == Names{"bn.num_batches_tracked", "fc.weight", "half"});
  // added up in 32 bits the ones would be lost, for 5592405.5
  CHECK(mean.tensor("fc.weight").equal(at::full({3}, 5592406.0)));
  CHECK(mean.tensor("fc.weight").scalar_type() == at::kFloat);
  CHECK(mean.tensor("half").scalar_type() == at::kBFloat16);
  CHECK(mean.tensor("bn.num_batches_tracked").item<std::int64_t>() == 3);

  const Archive one = average_weights({paths[1]});
  CHECK(one.tensor("fc.weight").equal(at::ones({3})));
}

TEST_CASE("the last checkpoints of a folder are those furthest in the run, oldest first",
          "[checkpoint][average]") {
  const TemporaryFolder folder;
  write(folder, "ep3-ba9", 9, 3);
  write(folder, "ep10-ba30", 30, 10);
  write(folder, "ep1-ba3", 3, 1);
  std::filesystem::create_directories(folder / "notes");
  point_latest(folder / "latest", "ep10-ba30");
  const auto names = [&](std::int64_t count) {
    Names out;
    for (const std::string& path : last_checkpoints(folder.path(), count)) {
      out.push_back(std::filesystem::path(path).filename().string());
    }
    return out;
  };
  CHECK(names(2) == Names{"ep3-ba9", "ep10-ba30"});
  CHECK(names(1) == Names{"ep10-ba30"});
  CHECK(names(9) == Names{"ep1-ba3", "ep3-ba9", "ep10-ba30"});
  CHECK(average_weights(last_checkpoints(folder.path(), 2))
            .tensor("fc.weight")
            .equal(at::full({3}, 6.5)));
}

TEST_CASE("checkpoints of different models are not averaged", "[checkpoint][average]") {
  const TemporaryFolder folder;
  const std::string a = write(folder, "a", 1, 1);
  const std::string wide = write(folder, "wide", 2, 1, {4});
  CHECK_THROWS_WITH(average_weights({a, wide}),
                    ContainsSubstring("average_weights: 'fc.weight' is Float[4] in '") &&
                        ContainsSubstring("and Float[3] in '"));
  write_safetensors(folder / "other.safetensors", {{"head", at::ones({1})}});
  const std::string other = (folder / "other.safetensors").string();
  CHECK_THROWS_WITH(average_weights({a, other}),
                    ContainsSubstring("has the tensor 'head', which '" + a + "' lacks"));
  write_safetensors(folder / "part.safetensors", {{"fc.weight", at::ones({3})}});
  CHECK_THROWS_WITH(average_weights({a, (folder / "part.safetensors").string()}),
                    ContainsSubstring("has 1 tensors and '" + a + "' 3"));
  CHECK_THROWS_WITH(average_weights({}), ContainsSubstring("there is no checkpoint to average"));
  CHECK_THROWS_WITH(last_checkpoints(folder / "none", 1), ContainsSubstring("there is no folder"));
  CHECK_THROWS_WITH(last_checkpoints(folder.path(), 0),
                    ContainsSubstring("count is 0, expected 1 or more"));
  std::filesystem::create_directories(folder / "empty");
  CHECK_THROWS_WITH(last_checkpoints(folder / "empty", 1),
                    ContainsSubstring("has no checkpoint; name a run's save_folder"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
