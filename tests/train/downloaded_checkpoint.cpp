#include <tutti/train/downloaded_checkpoint.hpp>

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/fake_communicator.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// Has the addresses that begin with `base`.
struct Source final : checkpoint::Mirror {
  explicit Source(std::string start) : base(std::move(start)) {}
  void written(const std::string&, const std::string&) noexcept override {}
  bool failed() const noexcept override { return false; }
  void check() override {}
  bool wait(std::chrono::milliseconds) override { return true; }
  bool fetch_latest(const std::string&, const std::string&) override { return false; }
  bool fetch(const std::string& uri, const std::string& target) override {
    asked.push_back(uri);
    if (uri.rfind(base, 0) != 0) {
      return false;
    }
    TORCH_CHECK(uri != base + "down", "the line is down");
    fs::create_directory(target);
    write_bytes(fs::path(target) / "manifest.json", uri);
    return true;
  }
  std::string base;
  Names asked;
};

// The second rank of a node, on which the first has done its part.
class Second final : public FakeCommunicator {
 public:
  using FakeCommunicator::all_reduce;
  Second() : FakeCommunicator(1) {}
  int waits = 0;  // that it still has to
  int waited = 0;
  std::string error;  // of the other one

  void all_reduce(std::span<std::int64_t> values, dist::ReduceOp) override {
    values[0] = waits > 0 ? 1 : values[0];
    waited += waits > 0 ? 1 : 0;
    --waits;
  }
  std::string broadcast_bytes(const std::string&, int) override { return "/of/rank/zero"; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return {error, bytes};
  }
};

}  // namespace

TEST_CASE("an address has a scheme", "[train][fetched]") {
  CHECK(train::is_address("s3://bucket/a"));
  CHECK(train::is_address("file:///a"));
  CHECK_FALSE(train::is_address("/a/b"));
  CHECK_FALSE(train::is_address("run:1/latest"));
  CHECK_FALSE(train::is_address("a//b"));
  CHECK_FALSE(train::is_address(""));
}

TEST_CASE("one that is alone works at once, and what it throws comes back", "[train][fetched]") {
  dist::SingleProcess alone;
  std::thread::id worker;
  train::run_while_others_wait(alone, true, [&] { worker = std::this_thread::get_id(); });
  CHECK(worker == std::this_thread::get_id());
  CHECK_THROWS_AS(
      train::run_while_others_wait(alone, true, [] { throw std::range_error("disk full"); }),
      std::range_error);
  int calls = 0;
  train::run_while_others_wait(alone, false, [&] { ++calls; });
  CHECK(calls == 0);
}

TEST_CASE("a rank waits for those who work, and hears of their failure", "[train][fetched]") {
  Second world;
  world.waits = 2;
  train::run_while_others_wait(world, false, [] { FAIL("it is not this rank that works"); });
  CHECK(world.waited == 2);
  world.error = "the line is down";
  CHECK_THROWS_WITH(train::run_while_others_wait(world, false, [] {}),
                    ContainsSubstring("rank 0: the line is down"));
  CHECK_THROWS_WITH(
      train::run_while_others_wait(world, true, [] { throw std::runtime_error("own"); }), "own");

  world.error.clear();
  std::thread::id worker;  // one of its own, while this one answers the others
  train::run_while_others_wait(world, true, [&] { worker = std::this_thread::get_id(); });
  CHECK(worker != std::thread::id());
  CHECK(worker != std::this_thread::get_id());
}

TEST_CASE("a checkpoint is fetched from who has it, and removed at the end", "[train][fetched]") {
  const TemporaryFolder folder;
  const EnvironmentVariable place("TMPDIR", folder.path().c_str());
  dist::SingleProcess alone;
  Source first("s3://");
  Source second("gs://");
  Source third("gs://");
  {
    const train::DownloadedCheckpoint fetched("gs://bucket/a", {&first, &second, &third}, alone);
    CHECK(fs::path(fetched.folder()).parent_path() == folder.path());
    CHECK(read_bytes(fetched.folder() + "/manifest.json") == "gs://bucket/a");
    const train::DownloadedCheckpoint again("gs://bucket/b", {&second}, alone);
    CHECK(again.folder() != fetched.folder());
  }
  CHECK(first.asked == Names{"gs://bucket/a"});
  CHECK(second.asked == Names{"gs://bucket/a", "gs://bucket/b"});
  CHECK(third.asked.empty());
  CHECK(sorted_names(folder.path()).empty());
}

TEST_CASE("a checkpoint that nobody has, or cannot bring, is refused and leaves nothing",
          "[train][fetched]") {
  const TemporaryFolder folder;
  const EnvironmentVariable place("TMPDIR", folder.path().c_str());
  dist::SingleProcess alone;
  Source source("s3://");
  const auto fetch = [&](const std::string& uri, const std::vector<checkpoint::Mirror*>& mirrors) {
    const train::DownloadedCheckpoint fetched(uri, mirrors, alone);
  };
  CHECK_THROWS_WITH(fetch("gs://a", {&source}),
                    ContainsSubstring("load_path is 'gs://a', but no policy of the recipe loads "
                                      "from there; add a tutti::RemoteUploader"));
  CHECK_THROWS_AS(fetch("gs://a", {}), c10::ValueError);
  CHECK_THROWS_WITH(fetch("s3://down", {&source}), ContainsSubstring("the line is down"));
  CHECK(sorted_names(folder.path()).empty());
}

TEST_CASE("the other ranks of a node read what the first one fetched", "[train][fetched]") {
  Second world;
  Source source("s3://");
  const train::DownloadedCheckpoint fetched("s3://a", {&source}, world);
  CHECK(fetched.folder() == "/of/rank/zero");
  CHECK(source.asked.empty());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
