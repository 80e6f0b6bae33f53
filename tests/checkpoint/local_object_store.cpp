#include <tutti/checkpoint/local_object_store.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

static_assert(ObjectStore<LocalObjectStore>);

TEST_CASE("a local store gives back what was put into it", "[checkpoint][object_store]") {
  const TemporaryFolder folder;
  const AnyObjectStore store = LocalObjectStore{(folder / "store").string()};
  CHECK(store.list_objects("").empty());
  const std::string large(3'000'000, 'x');
  write_bytes(folder / "a", large);
  write_bytes(folder / "b", "second");
  store.upload_object("runs/one", (folder / "a").string());
  store.upload_object("runs/two", (folder / "a").string());
  store.upload_object("runs/two", (folder / "b").string());  // replaces
  store.upload_object("other", (folder / "b").string());
  CHECK(store.list_objects("") == Names{"other", "runs/one", "runs/two"});
  CHECK(store.list_objects("runs/t") == Names{"runs/two"});
  CHECK(store.get_object_size("runs/one") == 3'000'000);
  CHECK(store.get_object_size("runs/two") == 6);
  CHECK(store.get_uri("x/y") == "file://" + (folder / "store/x/y").string());
  store.download_object("runs/one", (folder / "c").string());
  CHECK(read_bytes(folder / "c") == large);
  CHECK(sorted_names(folder / "store/runs") == Names{"one", "two"});  // nothing half done
}

TEST_CASE("a local store refuses what is not there and names that lead out of it",
          "[checkpoint][object_store]") {
  const TemporaryFolder folder;
  const LocalObjectStore store{(folder / "store").string()};
  write_bytes(folder / "a", "a");
  store.upload_object("a", (folder / "a").string());
  CHECK_THROWS_AS(store.get_object_size("b"), ObjectNotFound);
  CHECK_THROWS_AS(store.download_object("b", (folder / "c").string()), ObjectNotFound);
  CHECK_THROWS_WITH(store.download_object("a", (folder / "a").string()),
                    ContainsSubstring("is there already"));
  for (const char* name : {"../a", "/a", "", "x/../../a", "a/"}) {
    CHECK_THROWS_WITH(store.upload_object(name, (folder / "a").string()),
                      ContainsSubstring("expected a relative path without dots"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
