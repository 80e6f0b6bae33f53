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

void save(const fs::path& path, std::int64_t batch, bool weights_only = false,
          const std::string& saver_id = "") {
  Snapshot snapshot;
  snapshot.meta.put("saver_id", saver_id);
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

TEST_CASE("a checkpoint that its run wrote after the pointer is the last one",
          "[checkpoint][latest]") {
  const TemporaryFolder folder;
  save(folder / "ep1", 1, false, "mine");
  point_latest(folder / "latest", "ep1");
  set_written(folder / "latest", 1000);  // what follows died before pointing
  CHECK(find_latest(folder.path(), "latest") == (folder / "ep1").string());
  save(folder / "ep3", 3, false, "mine");
  save(folder / "ep2", 2, false, "mine");
  save(folder / "ep0", 0, false, "mine");
  const std::string expected = (folder / "ep3").string();
  CHECK(find_latest(folder.path(), "latest") == expected);
  save(folder / "theirs", 4, false, "another's");
  save(folder / "of nobody", 5);
  save(folder / "weights", 6, true, "mine");
  save(folder / ".tmp-ep7-0123456789ab", 7, false, "mine");
  save(folder / "cut", 8, false, "mine");
  fs::resize_file(folder / "cut/model.safetensors", 7);
  save(folder / "half", 9, false, "mine");
  fs::remove(folder / "half/model.safetensors");
  fs::create_symlink("theirs", folder / "link");
  CHECK(find_latest(folder.path(), "latest") == expected);
  set_written(folder / "latest", std::int64_t{1} << 33);  // by hand, later than all
  CHECK(find_latest(folder.path(), "latest") == (folder / "ep1").string());
  point_latest(folder / "latest", "of nobody");
  set_written(folder / "latest", 1000);
  save(folder / "ep10", 10);
  CHECK(find_latest(folder.path(), "latest") == (folder / "of nobody").string());
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
