#include <tutti/checkpoint/save_job.hpp>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using checkpoint::SaveJob;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// Notes what it is told and what was on disk then.
struct Witness final : checkpoint::Mirror {
  void written(const std::string& path, const std::string& link) noexcept override {
    told = path + " " + link;
    value = checkpoint::read_snapshot(path).model.tensor("weight")[0].item<double>();
    names = sorted_names(fs::path(path).parent_path());
    thread = std::this_thread::get_id();
    ++calls;
  }
  bool failed() const noexcept override { return false; }
  void check() override {}
  bool wait(std::chrono::milliseconds) override { return true; }
  bool fetch_latest(const std::string&, const std::string&) override { return false; }
  bool fetch(const std::string&, const std::string&) override { return false; }

  std::string told;
  double value = 0;
  Names names;
  std::thread::id thread;
  int calls = 0;
};

checkpoint::SnapshotFiles pages(double value) {
  checkpoint::Snapshot snapshot;
  snapshot.model.put("weight", at::full({2}, value));
  return checkpoint::to_files(snapshot);
}

double value_in(const fs::path& path) {
  return checkpoint::read_snapshot(path).model.tensor("weight")[0].item<double>();
}

// A folder "run" and the paths in it.
struct Run {
  TemporaryFolder place;
  std::string at(const std::string& name) const { return (place / ("run/" + name)).string(); }
  Names names() const { return sorted_names(place / "run"); }
};

}  // namespace

TEST_CASE("a save job writes, points, tells and only then removes", "[checkpoint][save_job]") {
  const Run run;
  SaveJob{{.path = run.at("ba2"), .link = run.at("latest"), .surplus = {}, .id = "own"},
          pages(2)}();
  CHECK(run.names() == Names{"ba2", "latest"});
  CHECK(fs::read_symlink(run.at("latest")) == "ba2");

  Witness first;
  Witness second;
  SaveJob job{
      {.path = run.at("ba4"), .link = run.at("latest"), .surplus = {run.at("ba2")}, .id = "own"},
      pages(4),
      {&first, &second}};
  job();
  for (const Witness* mirror : {&first, &second}) {
    CHECK(mirror->calls == 1);
    CHECK(mirror->told == run.at("ba4") + " " + run.at("latest"));
    CHECK(mirror->value == 4);
    CHECK(mirror->names == Names{"ba2", "ba4", "latest"});
    CHECK(mirror->thread == std::this_thread::get_id());
  }
  CHECK(run.names() == Names{"ba4", "latest"});
  CHECK(value_in(run.at("latest")) == 4);
}

TEST_CASE("a save job replaces what has its name and forgives what is gone",
          "[checkpoint][save_job]") {
  const Run run;
  SaveJob{{.path = run.at("ba2"), .link = {}, .surplus = {}, .id = "own"}, pages(1)}();
  CHECK(run.names() == Names{"ba2"});  // no pointer
  SaveJob{{.path = run.at("ba2"), .link = {}, .surplus = {run.at("ba1")}, .id = "own"}, pages(2)}();
  CHECK(run.names() == Names{"ba2"});
  CHECK(value_in(run.at("ba2")) == 2);
  // One that is to go right away, as when none is kept: the mirrors see it all the same.
  Witness mirror;
  SaveJob{{.path = run.at("ba3"), .link = {}, .surplus = {run.at("ba3")}, .id = "own"},
          pages(3),
          {&mirror}}();
  CHECK(mirror.told == run.at("ba3") + " ");
  CHECK(mirror.value == 3);
  CHECK(run.names() == Names{"ba2"});
}

TEST_CASE("a save job that fails leaves older checkpoints and tells nobody",
          "[checkpoint][save_job]") {
  const Run run;
  SaveJob{{.path = run.at("ba2"), .link = run.at("latest"), .surplus = {}, .id = "own"},
          pages(2)}();
  Witness mirror;
  SECTION("it cannot write") {
    write_bytes(run.at("file"), "x");
    SaveJob job{{.path = run.at("file/ba4"),
                 .link = run.at("latest"),
                 .surplus = {run.at("ba2")},
                 .id = "own"},
                pages(4),
                {&mirror}};
    CHECK_THROWS_WITH(job(), ContainsSubstring("a file has that name; choose another"));
    CHECK(run.names() == Names{"ba2", "file", "latest"});
  }
  SECTION("it cannot point") {
    fs::create_directories(run.at("best/notes"));
    SaveJob job{
        {.path = run.at("ba4"), .link = run.at("best"), .surplus = {run.at("ba2")}, .id = "own"},
        pages(4),
        {&mirror}};
    CHECK_THROWS_AS(job(), c10::Error);
    CHECK(run.names() == Names{"ba2", "ba4", "best", "latest"});
  }
  CHECK(mirror.calls == 0);
  CHECK(value_in(run.at("latest")) == 2);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
