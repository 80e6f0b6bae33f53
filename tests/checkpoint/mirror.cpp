#include <tutti/checkpoint/mirror.hpp>

#include <chrono>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/folder.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/checkpoint/uploads.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "support/wrapped_store.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using checkpoint::Mirror;
using checkpoint::Uploads;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

// Policies' own mirrors are held by pointers to this.
static_assert(std::is_abstract_v<Mirror> && std::has_virtual_destructor_v<Mirror>);
static_assert(std::is_base_of_v<Mirror, Uploads>);

namespace {

constexpr std::chrono::seconds long_enough{60};

// A local store whose uploads wait, and then fail when they are to.
struct Slow : WrappedStore {
  std::shared_future<void> go;

  void upload_object(const std::string& name, const std::string& file) const {
    go.get();
    store.upload_object(name, file);
  }
};

// A run's folder, a store and what a trainer does with them.
struct Run {
  TemporaryFolder place;
  std::string folder = (place / "run").string();
  LocalObjectStore store{(place / "remote").string()};

  // Writes a checkpoint that holds `value`. Returns its path.
  std::string write(const std::string& name, double value) const {
    checkpoint::Snapshot snapshot;
    snapshot.model.put("weight", at::full({2}, value));
    checkpoint::write_snapshot(folder + "/" + name, snapshot);
    return folder + "/" + name;
  }

  // The same, pointed to and told.
  void save(Mirror& mirror, const std::string& name, double value) const {
    const std::string path = write(name, value);
    checkpoint::point_latest(folder + "/latest", name);
    mirror.written(path, folder + "/latest");
  }

  Uploads uploads() const { return Uploads({.store = store, .remote_folder = "a"}); }
};

double value_in(const std::string& path) {
  return checkpoint::read_snapshot(path).model.tensor("weight")[0].item<double>();
}

}  // namespace

TEST_CASE("what a mirror was told of comes back by its folder and by its address",
          "[checkpoint][mirror]") {
  const Run run;
  Uploads uploads = run.uploads();
  Mirror& mirror = uploads;
  CHECK(mirror.wait(std::chrono::milliseconds(0)));  // there is nothing to wait for
  CHECK_FALSE(mirror.fetch_latest(run.folder, "latest"));
  CHECK_FALSE(fs::exists(run.folder + "/latest"));
  run.save(mirror, "ba2", 2);
  run.save(mirror, "ba4", 4);
  CHECK(mirror.wait(long_enough));
  CHECK_FALSE(mirror.failed());
  CHECK_NOTHROW(mirror.check());

  fs::rename(run.folder, run.place / "lost");
  CHECK(mirror.fetch_latest(run.folder, "latest"));
  CHECK(sorted_names(run.folder) == Names{"ba4", "latest"});
  CHECK(value_in(run.folder + "/latest") == 4);
  CHECK_FALSE(mirror.fetch_latest(run.folder, "best"));

  const auto target = [&](const char* name) { return (run.place / name).string(); };
  CHECK(mirror.fetch(run.store.get_uri("a/latest"), target("newest")));
  CHECK(mirror.fetch(run.store.get_uri("a/ba2"), target("older")));
  CHECK(value_in(target("newest")) == 4);
  CHECK(value_in(target("older")) == 2);
  CHECK_FALSE(mirror.fetch("s3://elsewhere/a/ba2", target("none")));
  CHECK_THROWS_WITH(mirror.fetch(run.store.get_uri("a/ba3"), target("none")),
                    ContainsSubstring("is neither a checkpoint nor a pointer"));
  CHECK_FALSE(fs::exists(target("none")));
}

TEST_CASE("a checkpoint that no pointer names leaves a mirror's pointer as it was",
          "[checkpoint][mirror]") {
  const Run run;
  Uploads uploads = run.uploads();
  Mirror& mirror = uploads;
  mirror.written(run.write("ba1", 1), "");
  REQUIRE(mirror.wait(long_enough));
  CHECK_FALSE(mirror.fetch_latest((run.place / "elsewhere/run").string(), "latest"));
  run.save(mirror, "ba2", 2);
  mirror.written(run.write("ba3", 3), "");
  REQUIRE(mirror.wait(long_enough));
  const std::string back = (run.place / "elsewhere/run").string();
  CHECK(mirror.fetch_latest(back, "latest"));
  CHECK(sorted_names(back) == Names{"ba2", "latest"});
  CHECK(sorted_names(run.place / "remote/a") == Names{"ba1", "ba2", "ba3", "latest.symlink"});
}

TEST_CASE("a checkpoint may be removed once a mirror knows of it, and a wait has an end",
          "[checkpoint][mirror]") {
  const Run run;
  std::promise<void> open;
  Uploads uploads({.store = Slow{{run.store}, open.get_future().share()}, .remote_folder = "a"});
  Mirror& mirror = uploads;
  run.save(mirror, "ba2", 2);
  checkpoint::remove_snapshot(run.folder + "/ba2");
  CHECK_FALSE(mirror.wait(std::chrono::milliseconds(1)));
  open.set_value();
  CHECK(mirror.wait(long_enough));
  CHECK(value_in((run.place / "remote/a/ba2").string()) == 2);
}

TEST_CASE("what a mirror could not copy is told once", "[checkpoint][mirror]") {
  const Run run;
  std::promise<void> down;
  down.set_exception(std::make_exception_ptr(std::runtime_error("the line is down")));
  Uploads uploads({.store = Slow{{run.store}, down.get_future().share()},
                   .remote_folder = "a",
                   .num_attempts = 1});
  Mirror& mirror = uploads;
  run.save(mirror, "ba2", 2);
  CHECK(mirror.wait(long_enough));  // it has been given up
  CHECK(mirror.failed());
  CHECK_THROWS_WITH(mirror.check(), ContainsSubstring("a/ba2' could not be uploaded") &&
                                        ContainsSubstring("in 1 attempt: the line is down"));
  CHECK_FALSE(mirror.failed());
  CHECK_NOTHROW(mirror.check());
  mirror.written(run.folder + "/none", "");  // cannot throw
  CHECK(mirror.failed());
  CHECK_THROWS_WITH(mirror.check(), ContainsSubstring("run/none' could not be taken"));
  CHECK(sorted_names(run.folder) == Names{"ba2", "latest"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
