#include <tutti/checkpoint/uploads.hpp>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/convert.hpp>
#include <tutti/checkpoint/local_object_store.hpp>
#include <tutti/checkpoint/sharded_checkpoint.hpp>
#include <tutti/checkpoint/snapshot.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/wrapped_store.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Names = std::vector<std::string>;

namespace {

// A local store that uploads nothing before it is opened.
struct Gated : WrappedStore {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool waits = false;  // somebody does
    bool open = false;
    Names uploaded;
  };
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();

  void upload_object(const std::string& name, const std::string& file) const {
    {
      std::unique_lock lock(gate->mutex);
      gate->waits = true;
      gate->changed.notify_all();
      gate->changed.wait(lock, [&] { return gate->open; });
      gate->uploaded.push_back(name);
    }
    store.upload_object(name, file);
  }

  void wait_for_upload() const {
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [&] { return gate->waits; });
  }
  void open() const {
    const std::lock_guard lock(gate->mutex);
    gate->open = true;
    gate->changed.notify_all();
  }
};

}  // namespace

TEST_CASE("of the files that wait under one name the last is uploaded", "[checkpoint][uploads]") {
  const TemporaryFolder folder;
  const Gated store{{{(folder / "remote").string()}}};
  const auto file = [&](const char* name, const std::string& text) {
    write_bytes(folder / name, text);
    return (folder / name).string();
  };
  {
    checkpoint::Uploads uploads({.store = store, .remote_folder = "a"});
    uploads.take_file(file("first", "1"), "first");
    store.wait_for_upload();
    for (int i = 0; i < 20; ++i) {  // more than may wait, and the writer does not wait for room
      std::filesystem::remove(folder / "log");
      uploads.take_file(file("log", std::to_string(i)), "log");
    }
    uploads.take_file(file("other", "2"), "other");
    std::filesystem::remove(folder / "other");
    file("log", "19 and more");  // has grown before its turn comes
    store.open();
    CHECK(uploads.wait(std::chrono::seconds(60)));
    CHECK_FALSE(uploads.failed());
  }
  CHECK(store.gate->uploaded == Names{"first", "log", "other"});
  CHECK(read_bytes(folder / "remote/log") == "19 and more");
  CHECK(read_bytes(folder / "remote/other") == "2");
  CHECK(sorted_names(folder.path()) == Names{"first", "log", "remote"});
}

TEST_CASE("a file that is not there is an error of the uploads", "[checkpoint][uploads]") {
  const TemporaryFolder folder;
  checkpoint::Uploads uploads(
      {.store = LocalObjectStore{(folder / "remote").string()}, .remote_folder = "a"});
  uploads.take_file((folder / "missing").string(), "missing");
  CHECK(uploads.failed());
  CHECK_THROWS_WITH(uploads.check(), Catch::Matchers::ContainsSubstring("missing' could not be"));
  CHECK(sorted_names(folder.path()).empty());
}

TEST_CASE("a sharded checkpoint is uploaded with its folders and comes back",
          "[checkpoint][uploads][sharded]") {
  const TemporaryFolder folder;
  checkpoint::Snapshot snapshot;
  snapshot.model.put("weight", at::arange(10, at::kFloat).view({5, 2}));
  checkpoint::write_snapshot(folder / "whole", snapshot);
  checkpoint::shard_checkpoint(folder / "whole", folder / "run/ba2", 2);
  checkpoint::Uploads uploads(
      {.store = LocalObjectStore{(folder / "remote").string()}, .remote_folder = "a"});
  uploads.written((folder / "run/ba2").string(), (folder / "run/latest").string());
  std::filesystem::remove_all(folder / "run/ba2");
  CHECK(uploads.wait(std::chrono::seconds(60)));
  uploads.check();
  CHECK(sorted_names(folder / "remote/a/ba2") == Names{"manifest.json", "model"});
  CHECK(uploads.fetch_latest((folder / "back").string(), "latest"));
  const checkpoint::ShardedCheckpoint back(folder / "back/latest");
  back.verify();
  CHECK(back.ranks() == 2);
  CHECK(back.folder("model").read("weight").equal(snapshot.model.tensor("weight")));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
