#include <tutti/checkpoint/remote.hpp>

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/checkpoint/snapshot.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/wrapped_store.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using namespace tutti::checkpoint;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;

namespace {

// What it is given is one byte short there.
struct Cutting : WrappedStore {
  void upload_object(const std::string& name, const std::string& file) const {
    store.upload_object(name, file);
    const std::string path = store.root + '/' + name;
    const std::string whole = read_bytes(path);
    write_bytes(path, whole.substr(0, whole.size() - 1));
  }
};

// Says that it has downloaded what it has not.
struct Forgetful : WrappedStore {
  static void download_object(const std::string&, const std::string&) {}
};

void write_sample(const std::filesystem::path& path, float value) {
  Snapshot sample;
  sample.model.put("weight", at::full({3}, value));
  write_snapshot(path, sample);
}

float value_in(const std::filesystem::path& path) {
  return read_snapshot(path).model.get<at::Tensor>("weight")[0].item<float>();
}

}  // namespace

TEST_CASE("a checkpoint comes back from a store as it went", "[checkpoint][remote]") {
  const TemporaryFolder here;
  const TemporaryFolder there;
  const AnyObjectStore store = LocalObjectStore{there.path().string()};
  write_sample(here / "one", 1);
  upload_snapshot(store, here / "one", "runs/one");
  download_snapshot(store, "runs/one", here / "back");
  CHECK(value_in(here / "back") == 1);

  write_sample(here / "two", 2);
  upload_snapshot(store, here / "two", "runs/two");
  download_snapshot(store, "runs/two", here / "back");  // in its place
  CHECK(value_in(here / "back") == 2);
  CHECK(sorted_names(here.path()) == Names{"back", "one", "two"});
  CHECK_THROWS_AS(download_snapshot(store, "runs/three", here / "back"), ObjectNotFound);
  CHECK(value_in(here / "back") == 2);
}

TEST_CASE("a pointer names a checkpoint beside it and nothing else", "[checkpoint][remote]") {
  const TemporaryFolder here;
  const TemporaryFolder there;
  const LocalObjectStore local{there.path().string()};
  const AnyObjectStore store = local;
  upload_pointer(store, "runs/latest", "ep1", here.path());
  CHECK(download_pointer(store, "runs/latest", here.path()) == "ep1");
  upload_pointer(store, "runs/latest", "ep2", here.path());
  CHECK(download_pointer(store, "runs/latest", here.path()) == "ep2");
  for (const std::string bad : {"../elsewhere", "/etc", "..", ".", "", "a/b"}) {
    write_bytes(there.path() / "runs" / "latest.symlink", bad + "\n");
    CHECK_THROWS_WITH(download_pointer(store, "runs/latest", here.path()),
                      ContainsSubstring("which is no plain name"));
  }
  CHECK_THROWS_AS(download_pointer(store, "runs/none", here.path()), ObjectNotFound);
  CHECK(sorted_names(here.path()).empty());
}

TEST_CASE("an upload of another size is an error", "[checkpoint][remote]") {
  const TemporaryFolder here;
  const TemporaryFolder there;
  write_sample(here / "one", 1);
  const AnyObjectStore store = Cutting{{{there.path().string()}}};
  CHECK_THROWS_WITH(upload_snapshot(store, here / "one", "one"),
                    ContainsSubstring("bytes after its upload"));
}

TEST_CASE("what is wrong with a download is said of the object, not of the file that it became",
          "[checkpoint][remote]") {
  const TemporaryFolder here;
  const TemporaryFolder there;
  const AnyObjectStore store = LocalObjectStore{there.path().string()};
  write_sample(here / "one", 1);
  upload_snapshot(store, here / "one", "runs/one");
  write_bytes(there.path() / "runs/one/manifest.json", "no manifest");
  CHECK_THROWS_WITH(download_resolved(store, "runs/one", here / "back"),
                    ContainsSubstring("checkpoint: '" + store.get_uri("runs/one/manifest.json") +
                                      "' is refused"));
  const AnyObjectStore forgetful = Forgetful{{{there.path().string()}}};
  CHECK_THROWS_WITH(download_snapshot(forgetful, "runs/one", here / "back"),
                    ContainsSubstring("'" + store.get_uri("runs/one") + "' has no manifest.json"));
  CHECK_THROWS_WITH(download_pointer(forgetful, "runs/latest", here.path()),
                    ContainsSubstring("'" + store.get_uri("runs/latest.symlink") + "'"));
}

TEST_CASE("a name in a store is a checkpoint or a pointer, an address has its name",
          "[checkpoint][remote]") {
  const TemporaryFolder here;
  const TemporaryFolder there;
  const AnyObjectStore store = LocalObjectStore{there.path().string()};
  write_sample(here / "one", 1);
  upload_snapshot(store, here / "one", "runs/one");
  upload_pointer(store, "runs/latest", "one", here.path());
  download_resolved(store, "runs/one", here / "itself");
  download_resolved(store, "runs/latest", here / "pointed");
  CHECK(value_in(here / "itself") == 1);
  CHECK(value_in(here / "pointed") == 1);
  CHECK_THROWS_WITH(download_resolved(store, "runs/two", here / "none"),
                    ContainsSubstring("runs/two' is neither a checkpoint nor a pointer"));
  CHECK(sorted_names(here.path()) == Names{"itself", "one", "pointed"});

  CHECK(object_name(store, store.get_uri("runs/one")) == "runs/one");
  CHECK(object_name(store, "s3://bucket/runs/one").empty());
  CHECK(object_name(store, store.get_uri("")).empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
