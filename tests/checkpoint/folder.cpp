#include <tutti/checkpoint/folder.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

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

TEST_CASE("a file that is no line is no pointer", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  const auto file = folder / "latest";
  const auto is_itself = [&](const std::string& bytes) {
    write_bytes(file, bytes);
    return resolve(file) == file;
  };
  CHECK(is_itself("{\"weight_map\": {\"a\": \"x\"}}\n"));
  CHECK(is_itself("{\n}\n"));
  CHECK(is_itself(std::string("\x02\0\0\0\0\0\0\0{}", 10) + '\n'));
  CHECK(is_itself("ep1"));
  CHECK(is_itself("ep1\nep2\n"));
  CHECK(is_itself(""));
  CHECK(is_itself(std::string(5000, 'x') + '\n'));
  CHECK_FALSE(is_itself("ep1\r\n"));
  CHECK(resolve(file) == folder / "ep1");
}

TEST_CASE("a pointer leads nowhere but to a name beside it", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "run");
  for (const char* text : {"/etc\n", "../..\n", "..\n", ".\n", "\n", "a/b\n", "../ep1\n"}) {
    write_bytes(folder / "run/latest", text);
    CHECK_THROWS_WITH(resolve(folder / "run/latest"),
                      ContainsSubstring("run/latest' points to '") &&
                          ContainsSubstring("expected the name of a checkpoint beside it"));
  }
  fs::create_symlink("..", folder / "run/up");
  CHECK(resolve(folder / "run/up") == folder / "run/up");  // as the system has it
}

TEST_CASE("a pointer's file names what a dead writer had set aside, too", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  const auto aside = folder / ".old-ep1-0123456789ab";
  fs::create_directory(aside);
  write_bytes(folder / "latest", "ep1\n");
  CHECK(resolve(folder / "latest") == aside);
}

TEST_CASE("latest takes no name from a file that is no pointer", "[checkpoint][folder]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "ep1");
  write_bytes(folder / "latest", "{\"weight_map\": {}}\n");
  CHECK_THROWS_WITH(point_latest(folder / "latest", "ep1"),
                    ContainsSubstring("latest' is a file that is no pointer to a checkpoint"));
  CHECK(read_bytes(folder / "latest") == "{\"weight_map\": {}}\n");
  for (const char* old : {"ep0\n", ""}) {
    fs::remove(folder / "latest");
    write_bytes(folder / "latest", old);
    point_latest(folder / "latest", "ep1");
    CHECK(fs::read_symlink(folder / "latest") == "ep1");
  }
}

TEST_CASE("a folder is known again under another name, and not by its name alone",
          "[checkpoint][folder]") {
  const TemporaryFolder folder;
  const Place yet = place_of(folder / "run/a");
  CHECK(yet.inode.empty());
  fs::create_directories(folder / "run/a");
  fs::create_directory_symlink("run", folder / "link");
  const Place here = place_of(folder / "run/a/");
  CHECK(here.is(yet));
  CHECK(here.path == yet.path);
  CHECK(here.is(place_of(folder / "link/../link/a")));
  CHECK_FALSE(here.is(place_of(folder / "run")));
  CHECK_FALSE(Place{}.is(Place{}));
  fs::rename(folder / "run/a", folder / "run/b");
  CHECK(here.is(place_of(folder / "run/b")));
  CHECK(place_of(fs::current_path()).is(place_of(".")));
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

}  // namespace UNITY_BUILD_UNIQUE_ID
