#include <tutti/checkpoint/folder.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;
namespace fs = std::filesystem;

namespace {

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("latest names a checkpoint beside it and moves on", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "ep1");
  fs::create_directory(folder / "ep2");
  point_latest(folder / "latest", "ep1");
  CHECK(fs::equivalent(resolve(folder / "latest"), folder / "ep1"));
  point_latest(folder / "latest", "ep2");
  CHECK(fs::equivalent(resolve(folder / "latest"), folder / "ep2"));
  CHECK(fs::read_symlink(folder / "latest") == "ep2");  // relative: the folder can be moved
  CHECK(entries(folder.path()) == 3);
  CHECK_THROWS_WITH(point_latest(folder / "ep1", "ep2"), ContainsSubstring("cannot rename"));
  CHECK(entries(folder.path()) == 3);
}

TEST_CASE("a latest without symbolic links is a file of one line", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "ep1");
  write_bytes(folder / "latest", "ep1\n");
  CHECK(fs::equivalent(resolve(folder / "latest"), folder / "ep1"));
  CHECK(resolve(folder / "other") == folder / "other");
}

TEST_CASE("pointers that go round end", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  CHECK(fs::is_symlink(resolve(folder / "a")));
}

TEST_CASE("missing parents of a folder are made", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  make_folder(folder / "a/b/c");
  make_folder(folder / "a/b/c");
  CHECK(fs::is_directory(folder / "a/b/c"));
  write_bytes(folder / "file", "x");
  CHECK_THROWS_WITH(make_folder(folder / "file/below"),
                    ContainsSubstring("cannot create the folder"));
}

TEST_CASE("a folder that a file is in the way of says so", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  std::ofstream(folder / "taken") << "x";
  CHECK_THROWS_WITH(make_folder(folder / "taken/deep"),
                    ContainsSubstring("taken': a file has that name"));
}

TEST_CASE("a checkpoint that is removed is gone, and none is no error", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "ep1");
  write_bytes(folder / "ep1/manifest.json", "{}");
  tutti::checkpoint::remove_snapshot(folder / "ep1");
  CHECK(entries(folder.path()) == 0);
  CHECK_NOTHROW(tutti::checkpoint::remove_snapshot(folder / "ep1"));
}

TEST_CASE("a checkpoint set aside by a dead writer is found and put back", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  const std::string aside = ".old-ep1-0123456789ab";
  fs::create_directory(folder / aside);
  CHECK(resolve(folder / "ep1") == folder / aside);
  CHECK(tutti::checkpoint::detail::clean_staging(folder.path()) == 1);
  CHECK(fs::exists(folder / "ep1"));
  fs::create_directory(folder / aside);  // the new one was already in place: the old one is waste
  CHECK(tutti::checkpoint::detail::clean_staging(folder.path()) == 1);
  CHECK_FALSE(fs::exists(folder / aside));
  CHECK(fs::exists(folder / "ep1"));
  write_bytes(folder / ".tmp-latest-0123456789ab", "x");
  CHECK(tutti::checkpoint::detail::clean_staging(folder.path()) == 1);
  CHECK(tutti::checkpoint::detail::clean_staging(folder / "missing") == 0);
}

TEST_CASE("a temporary checkpoint is gone with whoever owns it", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  const EnvironmentVariable temporary("TMPDIR", folder.path().c_str());
  const std::string path = TemporaryCheckpoint::new_path();
  CHECK(path != TemporaryCheckpoint::new_path());
  {
    const TemporaryCheckpoint owner(path);
    const TemporaryCheckpoint guest(path, /*owned=*/false);
    CHECK(owner.place() == folder.path().string());
    make_folder(owner.path());
    write_bytes(owner.path() + "/file", "1");
  }
  CHECK(sorted_names(folder.path()).empty());
  {
    const TemporaryCheckpoint guest(path, /*owned=*/false);
    make_folder(guest.path());
  }
  CHECK(sorted_names(folder.path()).size() == 1);
  const TemporaryCheckpoint never_made(path + "-other");  // which is no error
}

TEST_CASE("an error about a folder names the address that it stands for", "[checkpoint][folder]") {
  const auto fails = [] {
    TORCH_CHECK_VALUE(false, "'/tmp/a/x' and '/tmp/a/y' differ; see /tmp/b");
    return 1;
  };
  CHECK(speaking_of("s3://b/a", "/tmp/a", [] { return 1; }) == 1);
  CHECK_THROWS_WITH(speaking_of("s3://b/tmp/a", "/tmp/a", fails),
                    ContainsSubstring("'s3://b/tmp/a/x' and 's3://b/tmp/a/y' differ; see /tmp/b"));
  CHECK_THROWS_AS(speaking_of("s3://b/a", "/tmp/c", fails), c10::ValueError);  // as it was
}
