#include <tutti/checkpoint/latest.hpp>

#include <filesystem>
#include <string>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
namespace fs = std::filesystem;

namespace {

void save(const fs::path& path, std::int64_t batch, bool weights_only = false) {
  Snapshot snapshot;
  snapshot.meta.put("batch", batch);
  snapshot.meta.put("weights_only", weights_only);
  snapshot.model.put("weight", at::ones({2}));
  write_snapshot(path, snapshot);
}

}  // namespace

TEST_CASE("the last checkpoint is a function of the folder and the pointer's name",
          "[checkpoint][latest]") {
  const TemporaryFolder folder;
  CHECK_FALSE(find_latest(folder.path(), "latest").has_value());
  CHECK_FALSE(find_latest(folder / "none", "latest").has_value());
  save(folder / "ep1", 1);
  save(folder / "ep2", 2);
  point_latest(folder / "latest", "ep1");
  CHECK(find_latest(folder.path(), "latest") == (folder / "ep1").string());
  fs::rename(folder / "ep1", folder / ".old-ep1-0123456789ab");  // a writer died replacing it
  CHECK(find_latest(folder.path(), "latest") == (folder / ".old-ep1-0123456789ab").string());
  fs::rename(folder / ".old-ep1-0123456789ab", folder / "elsewhere");
  CHECK_THROWS_WITH(find_latest(folder.path(), "latest"),
                    ContainsSubstring("which is not there; point it to another"));
}

TEST_CASE("a file in the pointer's place that is none is an error", "[checkpoint][latest]") {
  const TemporaryFolder folder;
  save(folder / "ep1", 1);
  write_bytes(folder / "latest", "{\"weight_map\": {}}\n");
  CHECK_THROWS_WITH(find_latest(folder.path(), "latest"),
                    ContainsSubstring("latest' is no pointer to a checkpoint; point it to"));
  write_bytes(folder / "latest", "../../etc\n");
  CHECK_THROWS_WITH(find_latest(folder.path(), "latest"),
                    ContainsSubstring("expected the name of a checkpoint beside it"));
}

TEST_CASE("without a pointer it is the checkpoint that is furthest in its run",
          "[checkpoint][latest]") {
  const TemporaryFolder folder;
  save(folder / "ep9-ba9", 9);
  save(folder / "ep10-ba10", 10);
  save(folder / "weights", 11, true);
  save(folder / ".tmp-ep12-ba12-0123456789ab", 12);
  fs::create_directory(folder / "notes");
  write_bytes(folder / "file", "x");
  save(folder / "damaged", 13);
  write_bytes(folder / "damaged/manifest.json", "{}");
  CHECK(find_latest(folder.path(), "latest") == (folder / "ep10-ba10").string());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
